import t from 'tap'
import { skip, withOpenedPage, type OpenedPage } from './opened-page.js'
import { until } from '../../support/until.js'

/** The names of a node's pods on the page. */
async function podsOf({ page }: OpenedPage, node: string): Promise<readonly string[]> {
  return page
    .locator('#pods li', { has: page.locator('.where-is', { hasText: node }) })
    .locator('.name')
    .allInnerTexts()
}

function isSame(names: readonly string[], others: readonly string[]): boolean {
  return names.length === others.length && names.every((name) => others.includes(name))
}

t.test('internal policy Local: only pods on the node of the client answer', { skip }, async (t) => {
  await withOpenedPage(['nftables', 'iptables', 'userspace'], async (opened) => {
    const { page, see, press, answersLike, sendUntil, complaints } = opened
    await page.locator('#pods .state.ready').nth(2).waitFor()
    const [here, elsewhere] = [await podsOf(opened, 'node-1'), await podsOf(opened, 'node-2')]
    t.equal(here.length, 2)
    t.equal(elsewhere.length, 1)
    for (const mode of ['nftables', 'iptables', 'userspace']) {
      await press(mode)
      await see('#status', `running in ${mode} mode`)
      const all = [...here, ...elsewhere]
      t.ok(await answersLike((names) => isSame(names, all)), `${mode}, Cluster: all pods`)
      await page.getByLabel('internal policy Local').click()
      await see('#kubectl', '"internalTrafficPolicy":"Local"')
      await page.locator('#ways .way', { hasText: '50 %' }).nth(1).waitFor()
      t.equal(await page.locator('#picture .plate').count(), 2, 'two ways in the picture')
      t.ok(await answersLike((names) => isSame(names, here)), `${mode}, Local: those of node-1`)

      for (const name of here) {
        const row = page.locator('#pods li', { hasText: name })
        await row.locator('[data-action=unready]').click()
        await row.locator('.state.not-ready').waitFor()
      }
      await see('#picture .stop', 'dropped')
      t.ok(await sendUntil(/dropped/), 'without one here nobody answers, though one is elsewhere')
      await page.getByLabel('internal policy Local').click()
      t.ok(await answersLike((names) => isSame(names, elsewhere)), 'Cluster: that one answers')
      for (const name of here) {
        const row = page.locator('#pods li', { hasText: name })
        await row.locator('[data-action=ready]').click()
        await row.locator('.state.ready').waitFor()
      }
    }
    t.same(complaints, [], 'no error in the console')
  })
})

t.test('a click counts while the list of pods changes', { skip }, async (t) => {
  await withOpenedPage(['iptables'], async (opened) => {
    const { page, complaints } = opened
    await page.locator('#pods .state.ready').nth(2).waitFor()
    // What is above the list becomes taller or shorter at any moment. The list is to stay in place.
    await page.evaluate(
      `Object.assign(document.getElementById('pods').style, { position: 'fixed', inset: '0 auto auto 0', zIndex: 9 })`,
    )
    const [first = '', second = ''] = await podsOf(opened, 'node-1')
    const rowOf = (name: string) => page.locator('#pods li', { hasText: name })
    const pressed = rowOf(first).locator('[data-action=unready]')
    await pressed.hover()
    await page.mouse.down()
    await page.evaluate(
      `[...document.querySelectorAll('#pods li')]
        .find((row) => row.innerText.includes(${JSON.stringify(second)}))
        .querySelector('[data-action=unready]').click()`,
    )
    await rowOf(second).locator('.state.not-ready').waitFor()
    await page.mouse.up()
    await rowOf(first).locator('.state.not-ready').waitFor()
    t.equal(await page.locator('#pods .state.ready').count(), 1)
    t.same(complaints, [], 'no error in the console')
  })
})

/**
 * Clicks "not ready" of the first pod while a pointer stays pressed on the page. Returns what its row
 * shows some time after the page got the change; then the pointer is released.
 */
const pressAndLook = `(async () => {
  let pressing
  const press = () => {
    document.dispatchEvent(new PointerEvent('pointerdown'))
    pressing = requestAnimationFrame(press)
  }
  press()
  const row = document.querySelector('#pods li')
  row.querySelector('[data-action=unready]').click()
  const events = new EventSource('events')
  await new Promise((resolve) => {
    events.onmessage = ({ data }) => data.includes('"not ready"') && resolve()
  })
  events.close()
  await new Promise((resolve) => setTimeout(resolve, 500))
  const held = row.querySelector('.state').innerText
  cancelAnimationFrame(pressing)
  document.dispatchEvent(new PointerEvent('pointerup'))
  return held
})()`

/** Where each row of the list of pods begins, without and with the words for a change under way. */
const placesOfRows = `(() => {
  const places = () =>
    [...document.querySelectorAll('#pods li')].map((row) => row.getBoundingClientRect().top)
  const before = places()
  const [header, pod] = [document.createElement('span'), document.createElement('span')]
  header.textContent = 'the kernel does not have this yet'
  pod.textContent = 'on its way to the kernel'
  pod.className = 'pending'
  document.getElementById('pending').append(header)
  document.querySelector('#pods .where-is').append(pod)
  const after = places()
  header.remove()
  pod.remove()
  return [before, after]
})()`

t.test('no button moves away from under a pointer', { skip }, async (t) => {
  await withOpenedPage(['iptables'], async ({ page, complaints }) => {
    await page.locator('#pods .state.ready').nth(2).waitFor()
    for (const width of [1280, 390]) {
      await page.setViewportSize({ width, height: 900 })
      const [before, after] = await page.evaluate<[number[], number[]]>(placesOfRows)
      t.equal(before.length, 3)
      t.same(after, before, `a change under way moves no row, ${width} pixels wide`)
    }
    t.equal(await page.evaluate(pressAndLook), 'ready', 'while pressed, the page stays as it is')
    await page.locator('#pods .state.not-ready').waitFor()
    t.same(complaints, [], 'no error in the console')
  })
})

t.test('continuous requests go on until they are stopped', { skip }, async (t) => {
  await withOpenedPage(['iptables', 'nftables'], async (opened) => {
    const { page, see, press, complaints } = opened
    await page.locator('#pods .state.ready').nth(2).waitFor()
    const asked = async () => Number.parseInt((await page.locator('#asked').innerText()).slice(3))
    const counted = async () => {
      const words = await page.locator('#counters').innerText()
      return [...words.matchAll(/:8080: (\d+)/g)].reduce((sum, [, count]) => sum + Number(count), 0)
    }
    await press('Keep sending')
    await page.locator('#continuous[aria-pressed=true]').waitFor()
    await see('#asked', /to \d+ requests/)
    await until('ten requests', async () => (await asked()) >= 10)
    await until('counters of endpoints', async () => (await counted()) >= 5)
    const [askedThen, countedThen] = [await asked(), await counted()]
    await until('more of them', async () => (await asked()) >= askedThen + 5)
    await until('moving counters', async () => (await counted()) >= countedThen + 5)
    await until('moving dots', async () => (await page.locator('#packets circle').count()) > 0)

    await press('nftables')
    await see('#status', 'running in nftables mode')
    await until('an answer in the new mode', async () =>
      /nftables[^]*web-/.test(await page.locator('#log tr').first().innerText()),
    )
    await press('outside')
    await page.locator('#targets button', { hasText: 'NodePort' }).click()
    await until('requests from the new sender', async () =>
      /outside → 192\.168\.50\.1:\d+[^]*web-/.test(
        await page.locator('#log tr').first().innerText(),
      ),
    )

    await press('Keep sending')
    await page.locator('#continuous[aria-pressed=false]').waitFor()
    // Requests that were already sent may still get answers.
    let stopped = 0
    await until('nothing is sent any more', async () => {
      stopped = await asked()
      await page.waitForTimeout(1500)
      return (await asked()) === stopped
    })
    await press('Send request')
    await see('#asked', `to ${stopped + 1} requests`)
    t.same(complaints, [], 'no error in the console')
  })
})

t.test('a mode that is not among the buttons is missing for a reason', { skip }, async (t) => {
  const why = 'Mode ipvs cannot run here: kernel module ip_vs: not in this kernel.'
  await withOpenedPage(
    ['iptables'],
    async ({ page, complaints, see }) => {
      await see('#limits', why)
      t.equal(await page.locator('#modes [data-value=ipvs]').count(), 0)
      t.same(complaints, [])
    },
    [why],
  )
})
