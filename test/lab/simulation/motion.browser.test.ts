import t from 'tap'
import { becomeWide, browserPath, hasBrowser } from '../playground/opened-page.js'
import { withOpenedSite, withSite } from './opened-site.js'

const skip = hasBrowser ? false : `there is no ${browserPath}; apt-get install chromium`

/** Records all that moves: how many dots at once, their words, and where each ended. */
const watch = `(() => {
  globalThis.seen = { most: 0, dots: 0, words: [] }
  const look = (changes) => {
    seen.most = Math.max(seen.most, document.getAnimations().length)
    for (const { target, addedNodes } of changes) {
      if (target.id !== 'packets') continue
      for (const dot of addedNodes) {
        seen.dots++
        if (dot.textContent !== '') seen.words.push(dot.textContent)
      }
    }
  }
  new MutationObserver(look).observe(document.body, { childList: true, subtree: true })
})()`

interface Seen {
  readonly most: number
  readonly dots: number
  readonly words: readonly string[]
}

t.test('at most one thing moves, and it says for how many requests', { skip }, async (t) => {
  await withSite(async ({ url }) => {
    await withOpenedSite(url, async ({ page, complaints, press }) => {
      const seen = () => page.evaluate<Seen>('seen')
      const still = () => page.locator('#packets .packet').waitFor({ state: 'detached' })
      await page.waitForFunction(`document.querySelectorAll('#pods .ready').length === 3`)
      await page.evaluate(watch)
      await press('Send request')
      await page.waitForFunction('seen.dots === 1')
      await still()
      t.same((await seen()).words, [], 'one request needs no number')
      await press('Send 100')
      await page.waitForFunction('seen.dots >= 2')
      await press('Send 100')
      await page.waitForFunction('seen.words.reduce((sum, each) => sum + Number(each), 0) === 200')
      await still()
      const many = await seen()
      t.ok(many.dots <= 5, `${many.dots} dots for 201 requests`)
      await page.evaluate(`(() => {
        globalThis.read = []
        const note = (changes) => read.push(...changes.map(({ target }) => target.textContent))
        for (const place of document.querySelectorAll('[role=status], [role=alert], output'))
          new MutationObserver(note).observe(place, { childList: true, characterData: true, subtree: true })
      })()`)
      await press('Keep sending')
      await page.waitForFunction(`seen.dots >= ${many.dots + 4}`)
      t.same(await page.evaluate('read'), [], 'a screen reader reads none of them out')
      await press('Keep sending')
      await still()
      const all = await seen()
      const several = all.words.length - many.words.length
      const dots = all.dots - many.dots
      t.ok(several <= dots / 2, `of requests that go on each dot is one: ${all.words.join()}`)
      t.equal(all.most, 1)
      t.same(complaints, [])
    })
  })
})

t.test('a frame in another page holds the whole picture', { skip }, async (t) => {
  await withSite(async ({ url }) => {
    await withOpenedSite(`${url}?embed`, async ({ page, complaints }) => {
      await page.waitForFunction(`document.querySelectorAll('#pods .ready').length === 3`)
      for (const [width, height] of [
        [1440, 900],
        [1024, 768],
        [960, 540],
        [800, 450],
        [600, 360],
        [500, 500],
        [390, 770],
      ] as const) {
        await becomeWide(page, width, height)
        const over = await page.evaluate<number[]>(`[
          document.documentElement.scrollWidth - innerWidth,
          document.documentElement.scrollHeight - innerHeight,
        ]`)
        t.same(over, [0, 0], `${width} × ${height}: nothing to scroll`)
        const { y = 0, height: tall = 0 } = (await page.locator('#picture').boundingBox()) ?? {}
        t.ok(y + tall <= height, `the picture ends at ${y + tall}`)
        t.ok(tall > height / 2.5, `and has room: ${tall}`)
        if (width === 500) continue
        t.same(await page.evaluate<string[]>(smaller(11)), [], `${width}: its text can be read`)
      }
      t.same(complaints, [])
    })
  })
})

/** Elements with smaller text. */
const smaller = (px: number) => `[...document.querySelectorAll('body *')]
  .filter((each) => each.checkVisibility() && each.tagName !== 'OPTION' &&
    [...each.childNodes].some((child) => child.nodeType === 3 && child.data.trim() !== ''))
  .filter((each) => {
    const svg = each.closest('svg')
    return Number.parseFloat(getComputedStyle(each).fontSize) * (svg ? svg.getScreenCTM().a : 1) < ${px}
  })
  .map((each) => each.tagName + ' ' + each.textContent)`

t.test('text on a projector can be read at 1024 px', { skip }, async (t) => {
  await withSite(async ({ url }) => {
    for (const scene of ['lesson=ebpf', 'exercise=intruder', 'compare=userspace+ebpf']) {
      await withOpenedSite(`${url}?present#${scene}`, async ({ page }) => {
        await page.setViewportSize({ width: 1024, height: 768 })
        await page.locator('#lessons h3, #exercises h3, .side h3').first().waitFor()
        t.same(await page.evaluate<string[]>(smaller(14)), [], scene)
      })
    }
  })
})

/** Boxes that a wire touches or nearly touches. Boxes at its ends count only elsewhere. */
const touched = `[...document.querySelectorAll('#picture :is(.wire, .writes)')].flatMap((wire) => {
  const length = wire.getTotalLength()
  const points = Array.from({ length: 101 }, (_, at) => wire.getPointAtLength((length * at) / 100))
  const isNear = ({ x, y }, { x: left, y: top, width, height }, by) =>
    x > left - by && x < left + width + by && y > top - by && y < top + height + by
  return [...document.querySelectorAll('#picture .box')]
    .map((box) => [box.getBBox(), box.nextElementSibling.textContent])
    .filter(([box]) => {
      const ends = [points[0], points[100]].filter((end) => isNear(end, box, 2))
      const isFar = ({ x, y }) => ends.every((end) => Math.hypot(end.x - x, end.y - y) > 20)
      return points.some((point) => isFar(point) && isNear(point, box, ends.length ? 4 : 5))
    })
    .map(([, name]) => name)
})`

t.test('no wire runs along a box', { skip }, async (t) => {
  await withSite(async ({ url }) => {
    await withOpenedSite(url, async ({ page, see, press }) => {
      for (const count of ['4', '5']) {
        await press('One replica more')
        await see('#replicas', count)
      }
      await page.waitForFunction(`document.querySelectorAll('#pods .ready').length === 5`)
      const seeWires = async (widths: readonly number[]) => {
        for (const mode of ['iptables', 'userspace']) {
          await press(mode)
          await see('#status', `running in ${mode} mode`)
          for (const sender of ['a pod', 'the node', 'outside', 'a pod of the Service']) {
            await press(sender)
            await see('#senders [aria-pressed=true]', sender)
            for (const width of widths) {
              await page.setViewportSize({ width, height: 900 })
              await page.waitForFunction(`document.querySelectorAll('#picture .plate').length === 5 &&
                document.querySelector('#picture').viewBox.baseVal.width > 600 === ${width > 760}`)
              t.same(await page.evaluate<string[]>(touched), [], `${mode}, ${sender}, ${width}`)
            }
          }
        }
      }
      await seeWires([1440, 390])
      await page.waitForURL(/objects=.*mode=userspace.*from=backend/)
      await page.goto(page.url().replace('#', '?embed#'))
      await seeWires([740])
    })
  })
})

t.test('a presenter can stop the dots, and link to a rule', { skip }, async (t) => {
  await withSite(async ({ url }) => {
    await withOpenedSite(`${url}?present`, async ({ page, complaints, press }) => {
      await page.setViewportSize({ width: 1024, height: 768 })
      t.same(await page.evaluate<string[]>(smaller(14)), [], 'no text is smaller than 14 px')
      const end = await page.evaluate<number>(
        `document.getElementById('picture').getBoundingClientRect().bottom`,
      )
      t.ok(end <= 768, `the whole picture is on the first screen; it ends at ${end}`)
      await press('Pause')
      await press('Send request')
      const place = () =>
        page.evaluate(`getComputedStyle(document.querySelector('#packets .packet')).transform`)
      await page.locator('#packets .packet').waitFor({ state: 'attached' })
      const before = await place()
      await press('Step')
      t.not(await place(), before, 'a step moves it')
      const after = await place()
      await page.waitForTimeout(200)
      t.equal(await place(), after, 'and nothing else does')
      await press('Pause')
      await page.locator('#packets .packet').waitFor({ state: 'detached' })
      const number = (index: number) => page.locator('#picture [data-hop]').nth(index)
      const isAtRule = (index: number) =>
        page.evaluate(`document.activeElement === document.querySelectorAll('#hops li')[${index}]`)
      await number(0).click()
      await page.locator('#hops li.asked').waitFor()
      t.equal(await isAtRule(0), true)
      await number(0).focus()
      await page.keyboard.press('Tab')
      await page.keyboard.press('Enter')
      t.equal(await isAtRule(1), true, 'a keyboard is enough')
      t.same(complaints, [])
    })
  })
})
