import t from 'tap'
import { picture, skip, withOpenedPage } from './opened-page.js'
import { until } from '../../support/until.js'

t.test('the page shows the way of a connection in every mode', { skip }, async (t) => {
  await withOpenedPage(['iptables', 'nftables', 'userspace'], async (opened) => {
    const { page, see, press, complaints, answers } = opened
    const inThirds = () => page.locator('#ways .way', { hasText: '33.3 %' }).nth(2).waitFor()
    const wiresToPods = () => page.locator('#picture .plate').count()

    await inThirds()
    await see('#hops', 'KUBE-SERVICES')
    t.equal((await answers()).size, 3, 'every pod answered')
    t.equal(await wiresToPods(), 3, 'the picture has a way to each pod')
    await see('.count', /^[1-9]\d* packets$/)
    t.equal(await page.locator('#picture .writes').count(), 1, 'kube-proxy only writes the rules')
    await see('#rules .why', 'by chance 33.3 % of the packets that reach this rule')
    await see('#rules .object', 'because of Service default/web, port http: spec.clusterIP')
    await picture(page, 'iptables')

    await press('nftables')
    await see('#status', 'running in nftables mode')
    await see('#hops', 'service-ips')
    await inThirds()
    t.equal((await answers()).size, 3)
    await see('#counters', /Rules of nftables mode have no counters.*Connections: 10\.244/)

    await press('userspace')
    await see('#status', 'running in userspace mode')
    await see('#ways', 'listener of this process')
    t.equal(await page.locator('#picture .writes').count(), 0, 'now kube-proxy is in the way')
    const turns = async () => [...(await answers()).values()].sort().join(' ')
    // The old rules choose by chance, and go only after the new ones are there.
    await until('exact turns', async () => (await turns()) === '33 33 34', 200)
    await see('#counters', /exact.*Connections: 10\.244\.\d\.\d+:8080: \d+/)
    const source = await page.locator('#log tr td').nth(4).innerText()
    t.match(source, /^(10\.244\.1\.1|192\.168\.50\.1)$/, 'US21: the pod saw the node')
    await see('#log tr td.lost', 'lost')
    await picture(page, 'userspace')

    await press('When it is better')
    await press('Send in both modes')
    await see('#costs', /the latest request[^]*the node[^]*the sender/)
    await see('#status', 'running in nftables mode')
    t.same(complaints, [], 'no error in the console')
  })
})

t.test('packets show that each control does what it says', { skip }, async (t) => {
  await withOpenedPage(['nftables', 'iptables'], async (opened) => {
    const { page, see, press, complaints, answersLike, sendUntil } = opened
    const pod = async (state: string) => {
      const row = page.locator('#pods li', { hasText: state }).first()
      await row.waitFor()
      return row.locator('.name').innerText()
    }
    const ready = async (count: number) => {
      await page
        .locator('#pods .state.ready')
        .nth(count - 1)
        .waitFor()
      await page.locator('#pods .state:not(.ready)').first().waitFor({ state: 'detached' })
    }
    const act = (action: string) => page.locator(`#pods [data-action=${action}]`).first().click()
    await ready(3)

    await page.getByLabel('session affinity').click()
    await see('#kubectl', '"sessionAffinity":"ClientIP"')
    await see('#rules .added', 'affinity')
    t.ok(await answersLike((names) => names.length === 1), 'affinity: one pod answered them all')
    await page.getByLabel('session affinity').click()
    await see('#kubectl', '"sessionAffinity":"None"')
    await see('#rules .removed', 'affinity')

    await act('unready')
    const unready = await pod('not ready')
    await page.locator('#ways .way', { hasText: '50 %' }).nth(1).waitFor()
    t.ok(
      await answersLike((names) => !names.includes(unready) && names.length > 1),
      'a pod that is not ready gets nothing',
    )
    await page.locator('#pods li', { hasText: 'not ready' }).locator('[data-action=ready]').click()
    await ready(3)
    t.ok(
      await answersLike((names) => names.includes(unready)),
      'and gets its share again once it is',
    )

    await act('kill')
    const killed = await pod('stopped')
    await page.locator('#ways .way', { hasText: '50 %' }).nth(1).waitFor()
    t.ok(
      await answersLike((names) => !names.includes(killed) && names.length > 1),
      'a killed pod gets nothing once that is noticed',
    )
    await page.locator('#pods [data-action=revive]').click()
    await ready(3)
    t.ok(await answersLike((names) => names.includes(killed)), 'a revived one answers again')

    await press('One replica fewer')
    await see('#kubectl', 'kubectl scale deployment web --replicas=2')
    await ready(2)
    await page.locator('#ways .way', { hasText: '50 %' }).nth(1).waitFor()
    await press('One replica more')
    await ready(3)
    await page.locator('#timeline .step', { hasText: 'first connection' }).waitFor()
    t.equal(await page.locator('#timeline li').count(), 7, 'every part of the change is measured')
    const times = (await page.locator('#timeline .ms').allInnerTexts()).map(Number.parseFloat)
    t.same(
      [...times].sort((a, b) => a - b),
      times,
      'and nothing happens before its cause',
    )
    await picture(page, 'nftables')

    const gone = await page.locator('#pods .name').first().innerText()
    await act('terminate')
    await page.locator('#pods li', { hasText: gone }).waitFor({ state: 'detached' })
    await ready(3)
    t.ok(
      await answersLike((names) => !names.includes(gone) && names.length > 1),
      'a terminated pod is replaced',
    )

    await press('outside')
    await page.locator('#targets button', { hasText: 'NodePort' }).click()
    t.ok(await sendUntil(/outside[^]*lost/), 'policy Cluster: the pod saw the node')
    await page.getByLabel('external policy Local').click()
    await see('#kubectl', '"externalTrafficPolicy":"Local"')
    t.ok(await sendUntil(/outside[^]*192\.168\.50\.10\d[^]*kept/), 'Local: it saw who asked')

    await page.locator('#types button', { hasText: 'LoadBalancer' }).click()
    await page.locator('#targets button', { hasText: 'LoadBalancer 203.0.113.' }).click()
    t.ok(await sendUntil(/203\.0\.113\.\d+:80[^]*kept/), 'the load balancer answers')
    await page.getByLabel('source ranges').fill('10.0.0.0/8')
    await press('set')
    await see('#picture .stop', 'dropped')
    t.ok(
      await sendUntil(/203\.0\.113\.\d+:80[^]*dropped/),
      'who is in no source range is not heard',
    )
    await picture(page, 'refused')
    await page.getByLabel('source ranges').fill('not a range')
    await press('set')
    await see('#error', /loadBalancerSourceRanges/)
    await page.getByLabel('source ranges').fill('')
    await press('set')

    await page.locator('#types button', { hasText: 'ClusterIP' }).click()
    await page.locator('#targets button', { hasText: 'NodePort' }).waitFor({ state: 'detached' })
    await press('a pod')
    t.ok(await answersLike((names) => names.length === 3), 'a ClusterIP is left, and it answers')
    await press('a pod of the Service')
    t.ok(await sendUntil(/backend[^]*web-/), 'a pod reaches its own Service')
    t.same(
      complaints.filter((text) => !/status of 409/.test(text)),
      [],
      'no error in the console',
    )
  })
})
