import t from 'tap'
import {
  browserPath,
  hasBrowser,
  newPage,
  sharedBrowser,
  pageIn,
} from '../lab/playground/opened-page.js'
import { DashboardSource } from '../../lib/page/dashboard/source.js'
import { FlowLog } from '../../lib/observe/flows/flow-log.js'
import { mode as nftables } from '../../lib/modes/nftables/index.js'
import { PageServer } from '../../lib/page/server.js'
import { PodNames } from '../../lib/sources/pod-names.js'
import { testConfig } from '../support/states.js'

const skip = hasBrowser ? false : `there is no ${browserPath}; apt-get install chromium`
const silent = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} }

/** The page of a proxy that has seen a connection from each of these clients. */
function proxyThatSaw(...clients: readonly string[]): DashboardSource {
  const flows = new FlowLog(100, () => '')
  const line = { event: 'opened', verdict: 'forwarded', why: '', protocol: 'TCP' } as const
  const way = { service: 'default/web:http', address: '10.96.0.10:80', endpoint: '10.244.2.3:8080' }
  flows.add(
    clients.map((ip, at) => ({ ...line, ...way, at, client: `${ip}:40000` })),
    0,
  )
  return new DashboardSource({
    ...{ mode: 'nftables', nodeName: 'node-1', log: silent, flows, podNames: new PodNames() },
    current: () => ({ config: testConfig, planner: nftables.planner(testConfig) }),
    count: () => Promise.resolve([]),
  })
}

t.test('an open page shows what a restarted proxy has seen, and no more', { skip }, async (t) => {
  const before = await PageServer.listen(proxyThatSaw('10.0.0.1', '10.0.0.2', '10.0.0.3'), 0)
  const { page } = await pageIn(await sharedBrowser(), before.url)
  t.teardown(() => page.close())
  const rows = page.locator('#flows tr')
  await rows.nth(2).waitFor()
  await before.close()
  await page.locator('#status', { hasText: 'waiting for it' }).waitFor()
  await page.getByRole('button', { name: 'outside', exact: true }).click()
  await page.locator('#error', { hasText: 'did not answer; try it again' }).waitFor()
  const after = await PageServer.listen(
    proxyThatSaw('10.0.0.8', '10.0.0.9'),
    Number(new URL(before.url).port),
  )
  t.teardown(() => after.close())
  t.equal(after.url, before.url)
  await rows.nth(2).waitFor({ state: 'detached' })
  const clients = await rows.locator('td:nth-child(3)').allInnerTexts()
  t.same(clients, ['10.0.0.9:40000', '10.0.0.8:40000'])
  t.equal(await page.locator('#error').isVisible(), false, 'nothing says any more that it is gone')
})

t.test('before the first view the page of a node shows no playground', { skip }, async (t) => {
  const server = await PageServer.listen(proxyThatSaw('10.0.0.1'), 0)
  t.teardown(() => server.close())
  const page = await newPage(await sharedBrowser())
  t.teardown(() => page.close())
  let answer = (): void => undefined
  const answered = new Promise<void>((resolve) => (answer = resolve))
  await page.route('**/events', async (route) => {
    await answered
    await route.continue()
  })
  await page.goto(server.url)
  await page.locator('#status', { hasText: 'connecting' }).waitFor()
  t.equal(await page.getByRole('button', { name: 'Send request' }).isVisible(), false)
  t.equal(await page.locator('#title').isVisible(), false)
  answer()
  await page.getByRole('heading', { name: 'kube-proxy', exact: true }).waitFor()
  t.equal(await page.locator('#flows').isVisible(), true)
})

t.test(
  'a hidden page follows nothing, and sees everything when it is shown again',
  { skip },
  async (t) => {
    const server = await PageServer.listen(proxyThatSaw('10.0.0.1'), 0)
    const { page } = await pageIn(await sharedBrowser(), server.url)
    t.teardown(() => page.close())
    const rows = page.locator('#flows tr')
    await rows.first().waitFor()
    const turn = (isHidden: boolean) =>
      page.evaluate(`
      Object.defineProperty(document, 'hidden', { value: ${isHidden}, configurable: true })
      document.dispatchEvent(new Event('visibilitychange'))
    `)
    await turn(true)
    await server.close()
    const after = await PageServer.listen(
      proxyThatSaw('10.0.0.8', '10.0.0.9'),
      Number(new URL(server.url).port),
    )
    t.teardown(() => after.close())
    let asked = 0
    page.on('request', () => asked++)
    await page.waitForTimeout(4000)
    t.equal(asked, 0)
    t.equal(await rows.count(), 1)
    await turn(false)
    await rows.nth(1).waitFor()
    t.equal(asked, 1)
  },
)
