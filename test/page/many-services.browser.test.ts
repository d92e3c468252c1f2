import t from 'tap'
import {
  browserPath,
  hasBrowser,
  sharedBrowser,
  pageIn,
  pictures,
} from '../lab/playground/opened-page.js'
import { DashboardSource } from '../../lib/page/dashboard/source.js'
import { mode as nftables } from '../../lib/modes/nftables/index.js'
import { PageServer } from '../../lib/page/server.js'
import { PodNames } from '../../lib/sources/pod-names.js'
import { service, states, testConfig } from '../support/states.js'
import type { DesiredState } from '../../lib/state/desired-state.js'
import type { SyncReport } from '../../lib/sync/syncer.js'

const skip = hasBrowser ? false : `there is no ${browserPath}; apt-get install chromium`
const silent = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} }
/** The name of one is the beginning of a thousand others, behind which it sorts. */
const numbered = (index: number, endpoints = 2) =>
  service({
    name: index === 4_999 ? 's4' : `s${String(index).padStart(4, '0')}`,
    clusterIp: `10.96.${index >> 8}.${index & 255}`,
    endpoints,
  })

t.test('a real browser follows 5,000 Services by what changes', { skip }, async (t) => {
  const planner = nftables.planner(testConfig)
  const source = new DashboardSource({
    ...{ mode: 'nftables', nodeName: 'node-1', log: silent },
    current: () => ({ config: testConfig, planner }),
    ...{ podNames: new PodNames(), count: () => Promise.resolve([]), flows: undefined },
  })
  const cost = { planMs: 0, applyMs: 0, bytes: 0, objects: 0, full: false }
  const end = (state: DesiredState, change: Partial<SyncReport> = {}) => {
    const plan = planner.plan(state)
    source.synced({ family: 'IPv4', outcome: 'applied', failed: [], plan, ...cost, ...change })
  }
  const cluster = states().put(...Array.from({ length: 5_000 }, (_, index) => numbered(index)))
  const sync = () => {
    const state = cluster.take()
    source.started([state])
    end(state)
  }
  sync()
  const server = await PageServer.listen(source, 0)
  t.teardown(() => server.close())
  const { page, complaints } = await pageIn(await sharedBrowser(), server.url)
  t.teardown(() => page.close())
  const see = (selector: string, text: string | RegExp) =>
    page.locator(selector, { hasText: text }).first().waitFor()
  const gone = (selector: string, text: string | RegExp) =>
    page.locator(selector, { hasText: text }).first().waitFor({ state: 'detached' })

  await see('#services-count', '5000')
  await see('#services', 'and 4800 more; the filter finds them')
  await see('#title', 'kube-proxy')
  await page.setViewportSize({ width: 640, height: 450 })
  const over = 'document.documentElement.scrollWidth - innerWidth'
  t.equal(await page.evaluate(over), 0, 'nothing sticks out at 200 %')
  await page.setViewportSize({ width: 1280, height: 900 })
  await page.getByLabel('Filter Services').press('Tab')
  await page.keyboard.press('Enter')
  await page.keyboard.press('Tab')
  await page.locator('#services-card :focus').waitFor({ state: 'detached' })
  t.equal(await page.locator('main section.path :focus').count(), 1, 'the list can be skipped')
  await page.getByLabel('Filter Services').fill('s4')
  await see('#services li:first-child', /^s4:http/)
  await page.getByLabel('Filter Services').fill('s4321')
  await page.locator('#services button[data-key="default/s4321:http"]').click()
  await see('#picture', 'Service s4321:http')
  await page.locator('#ways .way').nth(1).waitFor()

  cluster.put(numbered(4_321, 3), numbered(5_000))
  const next = cluster.take()
  source.started([next])
  end(next, { outcome: 'failed', error: 'the kernel is busy' })
  await see('#pending', /IPv4 sync failed and will be tried again: the kernel is busy/)
  await see('#pods li', 'on its way to the kernel')
  await see('#services li', 'on its way to the kernel')
  t.equal(await page.locator('#ways .way').count(), 2, 'the way is still the one of the kernel')
  await page.getByLabel('Filter Services').fill('')
  await see('#services li:first-child', 's4321')
  await see('#services li:nth-child(2)', 's5000')
  if (pictures !== undefined) {
    await page.screenshot({ path: `${pictures}/dashboard-pending-1280.png` })
  }

  source.started([next])
  end(next)
  await gone('#pods li', 'on its way to the kernel')
  await see('#services-count', '5001')
  await page.locator('#ways .way').nth(2).waitFor()
  t.equal(await page.locator('#pending').innerText(), '')

  cluster.remove(numbered(4_321), numbered(4_999))
  sync()
  await see('#services-count', '4999')
  await see('#picture', 'Service s0000:http')
  t.same(complaints, [], 'no error in the console')
})
