import { randomBytes } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { deflateRawSync, gzipSync, inflateRawSync } from 'node:zlib'
import t from 'tap'
import { missingSystem } from '../../../lib/modes/systems.js'
import { modeNames } from '../../../lib/modes/registry.js'
import { becomeWide, browserPath, hasBrowser, violations } from '../playground/opened-page.js'
import { play } from '../../support/played.js'
import { withOpenedSite, withSite, type OpenedSite } from './opened-site.js'

const skip = hasBrowser ? false : `there is no ${browserPath}; apt-get install chromium`

t.test('the site needs nothing of Node and no network, and is small', async (t) => {
  await withSite(async ({ folder }) => {
    const names = await readdir(folder)
    t.same(names.sort(), ['index.html', 'site.js', 'style.css'])
    const texts = await Promise.all(names.map((name) => readFile(join(folder, name), 'utf8')))
    t.same(
      [...texts.join('').matchAll(/["'`]node:[a-z/_]+["'`]/g)].map(([found]) => found),
      [],
    )
    t.notMatch(texts.join(''), /\bBuffer\.(?:from|byteLength|alloc)/)
    t.notMatch(texts.join(''), /(?:src|href)="(?:https?:|\/)/)
    const size = texts.reduce((sum, text) => sum + gzipSync(text).length, 0)
    t.ok(size < 2 ** 20, `${size} bytes compressed`)
  })
})

t.test('a cluster in the browser: every mode, more and fewer pods', { skip }, async (t) => {
  await withSite(async ({ url }) => {
    await withOpenedSite(url, async ({ page, complaints, see, press }) => {
      const answered = async () => {
        await press('clear')
        await page.locator('#bars .hint').waitFor()
        await press('Send 100')
        await see('#asked', 'to 100 requests')
        return page.locator('#bars .bar').count()
      }
      const pods = (count: number) =>
        page.waitForFunction(`document.querySelectorAll('#pods li').length === ${count}`)
      await see('#limits', 'This is a simulation')
      for (const mode of modeNames.filter((mode) => !missingSystem(mode, 'linux'))) {
        if (!(await page.locator('#status').innerText()).includes(mode)) await press(mode)
        await see('#status', `running in ${mode} mode`)
        t.equal(await answered(), 3, `${mode}: all three pods answer`)
        t.ok(await page.locator('#hops li, #ways .way').count(), `${mode}: there is a way`)
      }
      await press('One replica fewer')
      await pods(2)
      await page.locator('#pending:empty').waitFor({ state: 'attached' })
      t.equal(await answered(), 2, 'the pod that went answers no more')
      const [first = ''] = await page.locator('#pods .name').allInnerTexts()
      await page.locator('#pods [data-action=unready]').first().click()
      await see('#pods .state', 'not ready')
      await page.locator('#pending:empty').waitFor({ state: 'attached' })
      t.equal(await answered(), 1, 'a pod that is not ready gets none')
      t.notMatch(await page.locator('#bars').innerText(), first)
      for (const left of ['1', '0']) {
        await press('One replica fewer')
        await see('#replicas', left)
      }
      await page.locator('#fewer[aria-disabled=true]').waitFor()
      await page.waitForTimeout(100)
      t.equal(await page.evaluate('document.activeElement.id'), 'fewer', 'the focus stays')
      await pods(0)
      await press('Send request')
      await see('#log', 'refused')
      t.same(complaints, [])
    })
  })
})

function packed(text: string): string {
  return deflateRawSync(text).toString('base64url')
}

/** Whether the address contains changed objects, which are packed in it. */
function hasChanges(url: string): boolean {
  const packed = new URLSearchParams(new URL(url).hash.slice(1)).get('objects')
  if (packed === null) return false
  const text = inflateRawSync(Buffer.from(packed, 'base64url')).toString()
  return text.includes('sessionAffinity: ClientIP') && text.includes('replicas: 4')
}

t.test('the playground serves the site where it is simulated', { skip }, async (t) => {
  const played = play(['--simulated', '--port', '0', '--mode', 'nftables'])
  t.teardown(() => played.signal('SIGINT'))
  const [, url = ''] = await played.said(/Open (\S+) to try/)
  await withOpenedSite(url, async ({ page, complaints, see, press }) => {
    await see('#status', 'running in nftables mode')
    await see('#limits', 'This is a simulation')
    await page.locator('#pods .ready').nth(2).waitFor()
    await page.locator('#pending:empty').waitFor({ state: 'attached' })
    await press('Send 100')
    await see('#asked', 'to 100 requests')
    t.equal(await page.locator('#bars .bar').count(), 3, 'all three pods answer')
    await page.waitForURL(/^http:.*mode=nftables&service=/)
    t.same(complaints, [], 'its security policy allows all that it needs')
  })
})

t.test('an address shows the same cluster again', { skip }, async (t) => {
  await withSite(async ({ url }) => {
    let address = ''
    await withOpenedSite(url, async ({ page, see, press }) => {
      await press('nftables')
      await see('#status', 'running in nftables mode')
      await press('outside')
      await press('One replica more')
      await page.locator('#targets [data-value=NodePort]').click()
      // The part above the box grows with the pod, so a click may miss the box. A person clicks
      // again.
      const box = page.getByLabel('session affinity')
      while (!(await box.isChecked())) {
        await box.click()
        await page.waitForTimeout(200)
      }
      const parts = ['mode=nftables', 'from=outside', 'to=NodePort']
      while (!parts.every((part) => page.url().includes(part)) || !hasChanges(page.url())) {
        await page.waitForTimeout(50)
      }
      await page.waitForFunction(`document.querySelectorAll('#pods .ready').length === 4`)
      address = page.url()
    })
    await withOpenedSite(address, async ({ page, complaints, see }) => {
      await see('#status', 'running in nftables mode')
      await see('#senders [aria-pressed=true]', 'outside')
      await see('#targets [aria-pressed=true]', 'NodePort')
      await see('#replicas', '4')
      t.ok(await page.getByLabel('session affinity').isChecked())
      await page.waitForURL(/mode=nftables/)
      t.equal(await page.locator('#error').isVisible(), false)
      t.same(complaints, [])
    })
    const cut = address.replace(/(objects=[^&]{99})[^&]*/, '$1')
    for (const [wrong, words] of [
      [cut, /^This link shows only a part: its objects cannot be read\.$/],
      [`${url}#lesson=nope&mode=ipvs`, 'begin lesson nope: there is no such lesson.'],
      [`${url}#lesson=outside&step=x&mode=ipvs`, 'no such command: {"do":"lesson"'],
      [`${url}#mode=ipvs&to=nope`, 'no such command: {"do":"target"'],
      [`${url}#objects=${packed('a'.repeat(2 ** 23))}&mode=ipvs`, 'its objects cannot be read'],
    ] as const) {
      await withOpenedSite(wrong, async ({ see }) => {
        await see('#error', words)
        await see('#status', /running in (nftables|ipvs) mode/)
      })
    }
    await withOpenedSite(`${url}#lesson=outside&step=2`, async ({ page, see, press }) => {
      await see('#lessons h3', 'NodePort, LoadBalancer')
      await see('#status', 'running in iptables mode')
      await page.waitForFunction(`document.querySelectorAll('#lessons .done').length === 2`)
      await press('one step back')
      await page.waitForFunction(`document.querySelectorAll('#lessons .done').length === 1`)
      await press('start again')
      await page.waitForFunction(`document.querySelectorAll('#lessons .done').length === 0`)
      t.equal(await page.evaluate(`document.activeElement?.dataset.key`), 'again', 'focus stays')
    })
  })
})

t.test(
  'a link opened in the tab of the site shows its scene, and back the one before',
  { skip },
  async (t) => {
    await withSite(async ({ url }) => {
      await withOpenedSite(url, async ({ page, complaints, see, press }) => {
        const seeLesson = async () => {
          await see('#lessons h3', 'NodePort, LoadBalancer')
          await see('#status', 'running in iptables mode')
          await page.waitForFunction(`document.querySelectorAll('#lessons .done').length === 2`)
        }
        const seeFirst = async () => {
          await see('#status', 'running in nftables mode')
          await see('#senders [aria-pressed=true]', 'outside')
          t.equal(await page.locator('#lessons h3').count(), 0)
        }
        await page.evaluate('window.isSameDocument = true')
        await press('nftables')
        await press('outside')
        await page.waitForURL(/mode=nftables.*from=outside/)
        await seeFirst()
        t.ok(await page.evaluate('window.isSameDocument'), 'what the page writes loads nothing')
        await page.goto(`${url}#lesson=outside&step=2`)
        await seeLesson()
        await page.waitForURL(/lesson=outside.*mode=iptables/)
        await page.goBack()
        await seeFirst()
        await page.goForward()
        await seeLesson()
        await page.goto(`${url}#`)
        await page.waitForFunction(`document.querySelectorAll('#lessons h3').length === 0`)
        await see('#senders [aria-pressed=true]', 'a pod')
        // As if loading took long: what changes meanwhile is not written over the link.
        await page.evaluate(`history.pushState(null, '', '#lesson=outside&step=2')`)
        await press('One replica more')
        await see('#replicas', '4')
        await page.waitForTimeout(500)
        await page.evaluate(`dispatchEvent(new Event('hashchange'))`)
        await seeLesson()
        t.same(complaints, [])
      })
    })
  },
)

t.test('an address may hold much that cannot be packed well', { skip }, async (t) => {
  const service = `
    { apiVersion: v1, kind: Service, metadata: { name: much, annotations: { a: ${randomBytes(150_000).toString('base64')} } },
      spec: { ports: [{ port: 80 }] } }`
  await withSite(async ({ url }) => {
    await withOpenedSite(`${url}#objects=${packed(service)}`, async ({ page, complaints }) => {
      await page.waitForURL(/objects=.{200000,}&mode=/)
      t.same(complaints, [])
    })
  })
})

t.test('an address does the same to pods again', { skip }, async (t) => {
  await withSite(async ({ url }) => {
    let [address, seen] = ['', '']
    const act = async ({ page }: OpenedSite, action: string, state: string) => {
      await page.locator(`#pods li:has(.ready) [data-action=${action}]`).first().click()
      await page.locator('#pods .state', { hasText: state }).waitFor()
    }
    const statesIn = async ({ page }: OpenedSite) => {
      const all = await page.locator('#pods .state').allInnerTexts()
      return all.sort().join(', ')
    }
    await withOpenedSite(url, async (opened) => {
      const { page } = opened
      await page.waitForFunction(`document.querySelectorAll('#pods .ready').length === 3`)
      await act(opened, 'unready', 'not ready')
      await act(opened, 'kill', 'stopped')
      await page.waitForURL(/pods=default_web_\S*_running_unready/)
      await page.waitForURL(/pods=default_web_\S*_stopped_ready/)
      address = page.url()
      seen = await statesIn(opened)
    })
    await withOpenedSite(address, async (opened) => {
      const { page, complaints } = opened
      await page.locator('#pods .not-ready').waitFor()
      await page.locator('#pods .stopped').waitFor()
      await page.locator('#pods .ready').waitFor()
      t.equal(await statesIn(opened), seen)
      t.equal(seen, 'not ready, ready, stopped')
      t.same(complaints, [])
    })
    const hostile = '#pods=default_web_node-1_dark_ready+%3Cimg+src=x%3E&mode=nftables'
    await withOpenedSite(`${url}${hostile}`, async ({ page, complaints, see }) => {
      await see('#status', 'running in nftables mode')
      await page.waitForURL((now) => !now.hash.includes('img'))
      t.notMatch(page.url(), 'pods=', 'a link that cannot be read does nothing to pods')
      t.same(complaints, [])
    })
  })
})

t.test('two modes side by side, with a keyboard, and by a link', { skip }, async (t) => {
  await withSite(async ({ url }) => {
    await withOpenedSite(`${url}#compare=iptables+nftables`, async ({ page, complaints, see }) => {
      const press = async (selector: string) => {
        await page.locator(selector).first().focus()
        await page.keyboard.press('Enter')
      }
      const cells = (name: string) =>
        page.locator('#costs tr', { hasText: name }).locator('td').allInnerTexts()
      await see('#chapters [aria-pressed=true]', 'A list becomes a table')
      await see('.side', /^nftables as it would be[^]*service-ips/)
      await press('#chapters button:has-text("When it is better")')
      await see('.side', /^userspace runs now[^]*listener of this process/)
      await see('.side:first-child .count', /packets?$/)
      t.same(await cells('its bytes pass kube-proxy'), ['yes, all of them', 'no'])

      await press('#compare-left [data-value=nftables]')
      await see('.side:first-child h3', 'nftables')
      await see('.side:last-child h3', 'userspace')
      await press('#compare-send')
      await see('#status', 'running in userspace mode')
      await see('#costs', /the latest request[^]*the sender[^]*the node/)
      t.match(await cells('the latest request'), [
        /^web-\S+ answered; it saw 10\.244\.1\.10, the sender$/,
        /^web-\S+ answered; it saw \S+, the node$/,
      ])
      t.equal(await page.evaluate(`document.activeElement?.id`), 'compare-send', 'focus stays')
      await page.waitForURL(/compare=nftables\+userspace/)
      await press('#compare-end')
      await page.locator('#compared').waitFor({ state: 'hidden' })
      await page.waitForURL((now) => !now.hash.includes('compare'))
      t.equal(await page.evaluate(`document.activeElement?.dataset.value`), '0', 'nor is it lost')
      t.same(complaints, [])
    })
  })
})

t.test('axe finds nothing, in light and dark, wide and narrow', { skip }, async (t) => {
  await withSite(async ({ url }) => {
    for (const look of ['', '?present', '?embed', '#compare=userspace+ebpf']) {
      await withOpenedSite(`${url}${look}`, async ({ page, press, see }) => {
        // The pods may not be ready yet.
        do {
          await press('Send request')
          await see('#said', /Request \d+: /)
        } while (!/: .* answered/.test(await page.locator('#said').innerText()))
        for (const colorScheme of ['light', 'dark'] as const) {
          await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' })
          for (const width of [1440, 390]) {
            await page.setViewportSize({ width, height: 900 })
            t.same(await violations(page), [], `${look} ${colorScheme} ${width}`)
          }
        }
      })
    }
  })
})

t.test(
  'a telephone shows what it is and what to do first, and the picture',
  { skip },
  async (t) => {
    await withSite(async ({ url }) => {
      await withOpenedSite(url, async ({ page }) => {
        await page.setViewportSize({ width: 390, height: 844 })
        const at = async (selector: string) => {
          const { y = Infinity, height = 0 } = (await page.locator(selector).boundingBox()) ?? {}
          return { top: y, bottom: y + height }
        }
        t.ok((await at('.intro')).bottom < 300)
        t.ok((await at('#send-1')).bottom < 450, 'the button is above the middle')
        t.ok((await at('#picture')).top < 450)
        t.ok(
          (await at('#limits')).top > (await at('#picture')).bottom,
          'what is simulated is below',
        )
        const order = await page.evaluate<number[]>(`[...document.querySelectorAll('.scene button')]
        .filter((each) => each.checkVisibility())
        .map((each) => Math.round(each.getBoundingClientRect().top))`)
        t.same(
          order,
          order.toSorted((one, other) => one - other),
          'Tab goes from the top down',
        )
      })
    })
  },
)

/** Names as long as the API takes them, with no place for a line to end. */
const longService = `
apiVersion: v1
kind: Namespace
metadata: { name: ${'s'.repeat(63)} }
---
apiVersion: v1
kind: Service
metadata: { name: ${'w'.repeat(63)}, namespace: ${'s'.repeat(63)} }
spec:
  type: LoadBalancer
  selector: { app: web }
  ports: [{ name: ${'p'.repeat(15)}, port: 65535 }]
`

const longPods = `
apiVersion: apps/v1
kind: Deployment
metadata: { name: ${'m'.repeat(50)}, namespace: ${'s'.repeat(63)} }
spec:
  selector: { matchLabels: { app: web } }
  template:
    metadata: { labels: { app: web } }
    spec: { containers: [{ name: web, image: web }] }
`

t.test('at every width there is room for the words, also for long ones', { skip }, async (t) => {
  await withSite(async ({ url }) => {
    await withOpenedSite(url, async ({ page, see, press }) => {
      await page.waitForFunction(`document.querySelectorAll('#pods .ready').length === 3`)
      const over = () =>
        page.evaluate('document.documentElement.scrollWidth - document.documentElement.clientWidth')
      for (const width of [1440, 1241, 1240, 1024, 981, 980, 761, 760, 390]) {
        await becomeWide(page, width, 900)
        const tall = await page.evaluate<string[]>(
          `[...document.querySelectorAll('.where-is, .state, h2, button')]
            .filter((each) => each.checkVisibility() && each.clientHeight > 70)
            .map((each) => each.className + ' ' + each.textContent)`,
        )
        t.same(tall, [], `${width}: nothing is in a column of letters`)
        t.equal(await over(), 0, `${width}: nothing sticks out`)
        const text = await page.evaluate<number>(`(() => {
          const text = document.querySelector('#picture text')
          const { width, height } = text.ownerSVGElement.viewBox.baseVal
          const room = text.ownerSVGElement.getBoundingClientRect()
          const scale = Math.min(room.width / width, room.height / height)
          return scale * Number.parseFloat(getComputedStyle(text).fontSize)
        })()`)
        t.ok(text > 8.5, `${width}: the picture can be read, its text has ${text} px`)
      }
      await page.locator('#yaml').fill(longService)
      await press('apply')
      await page.locator('#services button', { hasText: 'www' }).click()
      await page.locator('#yaml').fill(longPods)
      await press('apply')
      await see('#timeline-title', 'mmm')
      await press('nftables')
      await see('#hops', 'www')
      await page.locator('#ranges').waitFor()
      // A screen of 1280 px at a zoom of 400 %.
      for (const width of [1440, 760, 320]) {
        await becomeWide(page, width, 900)
        t.equal(await over(), 0, `${width}: no long name sticks out`)
        const wide = await page.evaluate<string[]>(
          `[...document.querySelectorAll('#picture .box ~ text')].filter((text) => {
            const around = [...text.parentNode.querySelectorAll('.box')].map((box) => box.getBBox())
            const { x, y, width } = text.getBBox()
            const own = around.find((box) => box.x < x + width / 2 && box.x + box.width > x + width / 2 &&
              box.y < y && box.y + box.height > y)
            return own && (x < own.x || x + width > own.x + own.width)
          }).map((text) => text.textContent)`,
        )
        t.same(wide, [], `${width}: nor out of its box`)
      }
    })
  })
})

t.test('a lesson asks what to expect, and says later what it was', { skip }, async (t) => {
  await withSite(async ({ url }) => {
    await withOpenedSite(`${url}#lesson=trouble`, async ({ page, complaints, see }) => {
      const press = async (selector: string, key = 'Enter') => {
        await page.locator(selector).first().focus()
        await page.keyboard.press(key)
      }
      await see('#lessons .expected', 'First say what you expect. A Service without any pod')
      await press('#lessons .expected button:has-text("until it gives up")')
      await see('#lessons .expected [aria-pressed=true]', 'until it gives up')
      t.equal(await page.evaluate(`document.activeElement?.textContent`), 'until it gives up')
      for (const left of ['2', '1', '0']) {
        await press('#fewer')
        await see('#replicas', left)
      }
      await page.waitForFunction(`document.querySelectorAll('#pods li').length === 0`)
      await page.locator('#pending:empty').waitFor({ state: 'attached' })
      await press('#send-1')
      await see('#lessons .expected', 'You expected: until it gives up, and it was: it is refused')
      await press('#lessons [data-key=again]')
      await see('#lessons .expected', 'First say what you expect.')
      t.equal(await page.locator('#lessons .expected [aria-pressed=true]').count(), 0)
      t.same(complaints, [])
    })
  })
})

t.test('on paper nothing is to be pressed, and nothing is cut off', { skip }, async (t) => {
  await withSite(async ({ url }) => {
    await withOpenedSite(`${url}#lesson=iptables`, async ({ page, see, press }) => {
      await see('#lessons h3', 'Why iptables replaced it')
      await press('Send request')
      await see('#asked', 'to 1 request')
      await page.locator('#object').selectOption({ label: 'Service default/web' })
      await see('#yaml-kubectl', 'get service web -o yaml')
      await page.waitForFunction(`document.querySelector('#yaml').value.includes('kind: Service')`)
      await press('apply')
      await see('#kubectl', 'EOF')
      await page.emulateMedia({ media: 'print', colorScheme: 'dark' })
      const pressed = await page.evaluate<string[]>(
        `[...document.querySelectorAll('button, select, textarea')]
          .filter((each) => each.checkVisibility() && each.ariaPressed !== 'true')
          .filter((each) => !each.closest('#services'))
          .map((each) => each.id || each.textContent)`,
      )
      t.same(pressed, [], 'of what can be chosen, what was chosen')
      const cut = await page.evaluate<string[]>(`[...document.querySelectorAll('main *')]
        .filter((each) => each.checkVisibility() && each.scrollHeight > each.clientHeight + 1)
        .filter((each) => ['auto', 'scroll'].includes(getComputedStyle(each).overflowY))
        .map((each) => each.id || each.className)`)
      t.same(cut, [], 'no list that would have to be scrolled')
      const open = await page.evaluate<boolean[]>(
        `[...document.querySelectorAll('#ways .why')].map((each) => each.checkVisibility())`,
      )
      t.same(open, [true, true, true], 'every way is open')
      // The page is as wide as A4 with margins.
      await page.setViewportSize({ width: 717, height: 1000 })
      const { height = 0 } = (await page.locator('#picture').boundingBox()) ?? {}
      t.ok(height > 200 && height < 500, `the picture has a place on a page: ${height} px`)
      const grids = await page.evaluate<string[]>(
        `['#picture', '#rules', '#hops', '#lessons'].flatMap((id) => {
          const around = []
          for (let at = document.querySelector(id).parentElement; at; at = at.parentElement)
            if (getComputedStyle(at).display !== 'block') around.push(id + ' in ' + at.className)
          return around
        })`,
      )
      t.same(grids, [], 'where a page ends in a grid, its parts lie over each other or are lost')
      const back = 'getComputedStyle(document.body).backgroundColor'
      t.equal(await page.evaluate(back), 'rgb(255, 255, 255)', 'white, whatever the screen is')
    })
  })
})
