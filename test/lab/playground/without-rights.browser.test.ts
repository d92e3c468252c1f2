import t from 'tap'
import { picture, skip, withBrowser, type OpenedPage } from './opened-page.js'
import { playWithoutRights } from '../../support/played.js'
import { until } from '../../support/until.js'

/** The page of a playground that has neither root nor user namespaces. */

async function withPageWithoutRights(act: (opened: OpenedPage) => Promise<void>): Promise<void> {
  const played = await playWithoutRights(['--port', '0'])
  const [, url = ''] = await played.said(/Open (http:\/\/127\.0\.0\.1:\d+)/)
  const [, kubeconfig = ''] = await played.said(/--kubeconfig (\S+) get all/)
  try {
    await withBrowser({ url, kubeconfig, mode: 'userspace' }, act)
  } finally {
    played.signal('SIGINT')
    await played.ended
  }
}

t.test('the page without any rights sends real requests, and says what is missing', { skip }, (t) =>
  withPageWithoutRights(async (opened) => {
    const { page, see, press, answers, sendUntil, complaints } = opened
    await see('#where', 'without any rights, on 127.0.0.0/8 of this machine')
    await see('#limits', /both nodes and all pods are programs of this machine/)
    await see('#limits', /Only userspace mode runs/)
    await see('#limits', /There is no sender outside/)
    t.same(await page.locator('#modes button').allInnerTexts(), ['userspace'])
    t.same(await page.locator('#senders button').allInnerTexts(), [
      'a pod',
      'the node',
      'a pod of the Service',
    ])
    t.equal(await page.locator('#picture text', { hasText: 'outside' }).count(), 0)

    await page.locator('#ways .way', { hasText: '33.3 %' }).nth(2).waitFor()
    await see('#hops code', /^listen TCP 127\.\d+\.96\.\d+:8000$/)
    await see('#ways', 'listener of this process')
    await see('#picture', 'kube-proxy listens at it')
    t.equal(await page.locator('#picture .plate').count(), 3, 'a way to each pod')
    const shares = [...(await answers()).values()].sort()
    t.same(shares, [33, 33, 34], 'three pods answered, exactly in turn')
    await see('#log td.lost', 'lost')
    t.equal(await page.locator('#log tr td').nth(4).innerText(), '127.0.0.1', 'they saw the node')
    await see('#counters', /makes them itself\. Connections:.* 127\.\d+\.1\.21:8080: \d+/)
    await see('#rules .why', 'kube-proxy itself listens at 127.')
    await picture(page, 'without-rights')

    await page.locator('#targets button', { hasText: 'NodePort 127.0.0.1:' }).click()
    t.ok(await sendUntil(/127\.0\.0\.1:3\d+[^]*web-/), 'the node port answers')
    await page.locator('#types button', { hasText: 'LoadBalancer' }).click()
    await page.locator('#targets button', { hasText: /LoadBalancer 127\.\d+\.113\./ }).click()
    t.ok(await sendUntil(/127\.\d+\.113\.\d+:8000[^]*web-/), 'so does a load balancer')
    await page.locator('#targets button', { hasText: 'ClusterIP' }).click()
    await press('a pod of the Service')
    t.ok(await sendUntil(/backend[^]*web-/), 'a pod reaches its own Service')
    await press('a pod')

    const scale = async (button: string, counts: readonly number[]) => {
      for (const count of counts) {
        await press(button)
        await see('#replicas', String(count))
      }
    }
    await scale('One replica fewer', [2, 1, 0])
    await see('#picture .stop', 'refused')
    await see('#ways, #hops', /has no endpoint for it, so the kernel refuses|no endpoints/)
    t.ok(await sendUntil(/refused/), 'without pods the kernel refuses, as the path says')
    await scale('One replica more', [1, 2, 3])
    await page.locator('#pods .state.ready').nth(2).waitFor()
    await page.locator('#services button[data-key="default/echo"]').click()
    await see('#hops code', /^listen UDP 127\.\d+\.96\.\d+:7000$/)
    t.ok(await sendUntil(/:7000[^]*web-/), 'UDP too')
    await page.locator('#services button[data-key="default/web"]').click()

    await see('#lessons [data-key=nftables]', 'needs nftables mode')
    await see('#lessons [data-key=outside]', 'needs iptables or nftables mode and a sender')
    await page.locator('#lessons [data-key=iptables]').click()
    await see('#lessons .missing', 'This lesson needs iptables mode, which is not available here.')
    await press('all lessons')
    await page.locator('#lessons [data-key=userspace]').click()
    t.equal(await page.locator('#lessons .missing').count(), 0)
    const isDone = async () => {
      await press('Send request')
      return (await page.locator('#lessons .moral').count()) > 0
    }
    await until('the end of the lesson', isDone, 100)
    await see('#lessons .moral', 'Pods take exact turns')
    t.same(complaints, [], 'no error in the console')
  }),
)
