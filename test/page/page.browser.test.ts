import type { Page } from 'playwright-core'
import t, { type Test } from 'tap'
import { addressOf, type Place } from '../../lib/lab/world/topology.js'
import { dashboardUrl, withDashboard } from './opened-dashboard.js'
import { endpoint, rawService, rawSlice } from '../state/objects.js'
import { pictures, skip, violations } from '../lab/playground/opened-page.js'
import { withProxyWorld, write } from '../e2e/proxy-world.js'
import type { IpFamily } from '../../lib/state/ip.js'
import type { ModeName } from '../../lib/config/config.js'
import type { World } from '../../lib/lab/world/world.js'

/** The page of a running daemon in a real browser: it shows what packets do. */

const clusterIps = { IPv4: '10.96.0.10', IPv6: 'fd00:10:96::10' } as const
/** The address of a Service without endpoints. */
const emptyIp = '10.96.0.67'
/** The pods by place. The last one has no `targetRef`, as in slices that people write. */
const pods = [
  ['pod-1', 'web-6d9f8c7b5-abcde'],
  ['pod-4', 'web-6d9f8c7b5-fghij'],
  ['pod-2', undefined],
] as const satisfies readonly (readonly [Place, string | undefined])[]

function objects() {
  const families: readonly IpFamily[] = ['IPv4', 'IPv6']
  const spec = {
    type: 'NodePort',
    clusterIP: clusterIps.IPv4,
    clusterIPs: families.map((family) => clusterIps[family]),
    ipFamilies: families,
    ipFamilyPolicy: 'PreferDualStack',
    ports: [{ name: 'http', protocol: 'TCP', port: 80, targetPort: 8080, nodePort: 30_080 }],
  }
  const slices = families.map((family) =>
    rawSlice({
      name: `web-${family.toLowerCase()}`,
      addressType: family,
      endpoints: pods.map(([place, name]) => ({
        ...endpoint(addressOf(place, family), { node: place === 'pod-4' ? 'node-2' : 'node-1' }),
        ...(name === undefined ? {} : { targetRef: { kind: 'Pod', namespace: 'default', name } }),
      })),
    }),
  )
  // A name may be any text that passes the API.
  const hostile = rawSlice({
    name: 'odd-1',
    service: 'odd',
    endpoints: [
      {
        ...endpoint(addressOf('pod-3', 'IPv4'), { node: 'node-1' }),
        targetRef: { kind: 'Pod', name: '<img src=x onerror=document.title="owned">' },
      },
      // More pods than the picture has room for.
      ...[1, 2, 3, 4, 5].map((last) => endpoint(`10.244.1.10${last}`, { node: 'node-1' })),
    ],
  })
  const odd = rawService({
    name: 'odd',
    spec: { clusterIP: '10.96.0.66', clusterIPs: ['10.96.0.66'] },
  })
  const empty = rawService({
    name: 'empty',
    spec: { clusterIP: emptyIp, clusterIPs: [emptyIp] },
  })
  return [rawService({ spec }), ...slices, odd, hostile, empty]
}

/** Signs of each mode in its hops and its picture, which no other mode has. */
const signs: Readonly<Record<string, readonly [hop: RegExp, machinery: string]>> = {
  nftables: [/service-ips|no-endpoint|cluster-ips/, 'nftables maps'],
  iptables: [/KUBE-SERVICES/, 'iptables, table nat'],
  userspace: [/KUBE-PORTALS-CONTAINER/, 'rules hand it to kube-proxy'],
}

for (const mode of ['nftables', 'iptables', 'userspace'] as const satisfies readonly ModeName[]) {
  t.test(`the dashboard of a daemon in ${mode} mode shows what packets do`, { skip }, (t) =>
    withProxyWorld(`dashboard-${mode}`, async (proxyWorld) => {
      const { world, folder } = proxyWorld
      await write(folder, 'all.yaml', ...objects())
      const flags = ['--proxy-mode', mode, '--userspace-source-address', 'hide']
      if (mode === 'nftables') flags.push('--flows', '--flows-state-file=')
      await withDashboard(proxyWorld, flags, async ({ page, complaints }) => {
        const see = (selector: string, text: string | RegExp) =>
          page.locator(selector, { hasText: text }).first().waitFor()
        await see('#status', `running in ${mode} mode`)
        await see('#where', 'node node-1, as its proxy sees it; nothing can be changed here')
        await page.locator('#services button[data-key="default/web:http"]').click()

        for (const family of ['IPv4', 'IPv6'] as const) {
          await page.getByRole('button', { name: family, exact: true }).click()
          await see('#targets button[aria-pressed=true]', clusterIps[family])
          await see('#picture', clusterIps[family])
          const [hop, machinery] = signs[mode] ?? [/never/, 'never']
          await see('#hops, #ways', hop)
          await see('#picture', machinery)
          await page.locator('#picture .plate').nth(2).waitFor()
          const names = await page.locator('#pods .name').allInnerTexts()
          const bare = addressOf('pod-2', family)
          t.same(
            names.map((name) => name.replace(/^\[?([\da-f.:]+?)\]?:8080$/, '$1')).sort(),
            ['web-abcde', 'web-fghij', bare].sort(),
            `${family}: names of pods, the address where there is none`,
          )

          const request = {
            protocol: 'TCP',
            host: clusterIps[family],
            port: 80,
            count: 60,
            timeoutMs: 300_000,
          } as const
          if (family === 'IPv4') {
            await world.agent('client-pod').flow({ ...request, count: 1 })
            await see('#asked', /^1 connection$/)
          }
          const results = await world.agent('client-pod').flow(request)
          const answered = new Set(results.map(({ backend }) => backend))
          t.same([...answered].sort(), ['pod-1', 'pod-2', 'pod-4'], 'three ways, three answer')
          await see('#bars .bar', 'web-fghij')
          await see('#asked', /connections/)
          const source = results[0]?.source ?? ''
          const isKept = source === addressOf('client-pod', family)
          t.equal(isKept, mode !== 'userspace')
          const sees = isKept ? 'which sees the sender' : 'which sees an address of this node'
          await see('#ways', sees)
        }

        if (mode === 'nftables') await seeStream(t, page, world)
        else await see('#flows-note', 'does not follow connections: start it with --flows')
        t.equal(await page.locator('#flows-shown').isVisible(), mode === 'nftables')

        if (pictures !== undefined && mode === 'nftables') {
          await page.getByRole('button', { name: 'IPv4', exact: true }).click()
          await page.waitForTimeout(2500)
          await page.screenshot({ path: `${pictures}/dashboard-1280.png`, fullPage: true })
        }
        await page.getByRole('button', { name: 'outside', exact: true }).click()
        await page.locator('#targets button', { hasText: 'NodePort' }).click()
        await see('#ways', 'which sees an address of this node')

        for (const control of ['#send-1', '#modes', '#replicas', '#types', '#yaml', '#lessons']) {
          t.equal(await page.locator(control).isVisible(), false, `${control} is not there`)
        }
        t.equal(await page.locator('#pods button:visible').count(), 0)
        const answers = await page.evaluate<readonly number[]>(`Promise.all([
          { do: 'replicas', count: 1 }, { do: 'mode', mode: 'iptables' }, { do: 'apply', yaml: 'x' }
        ].map((command) => fetch('/command', { method: 'POST',
          headers: { 'content-type': 'application/json' }, body: JSON.stringify(command) })
          .then(({ status }) => status)))`)
        t.same(answers, [409, 409, 409], 'who asks all the same is refused')
        const script = `require('http').get(process.argv[1], { headers: { host: 'evil.example' } }, (r) => console.log(r.statusCode))`
        const foreign = await world.exec('node', [process.execPath, '-e', script, dashboardUrl])
        t.equal(foreign.stdout.trim(), '403', 'and so is a foreign Host')

        await page.locator('#services button[data-key="default/odd:http"]').click()
        await see('#pods .name', '<img src=x')
        t.equal(await page.locator('img').count(), 0, 'a hostile name stays text')
        await see('#picture', 'and 3 more: 50 %')
        t.equal(await page.title(), 'kube-proxy')
        t.same(
          complaints.filter((each) => !/status of 409/.test(each)),
          [],
          'no error in the console',
        )
      })
    }),
  )
}

/** The stream of connections shows what clients did. A click leaves only lines that fit. */
async function seeStream(t: Test, page: Page, world: World): Promise<void> {
  const rows = page.locator('#flows tr')
  const texts = () => rows.allInnerTexts()
  const seeRow = (text: string) => rows.filter({ hasText: text }).first().waitFor()
  const connect = (host: string) =>
    world.agent('client-pod').flow({ protocol: 'TCP', host, port: 80, count: 1, timeoutMs: 500 })
  await seeRow('web-fghij')
  await rows.nth(99).waitFor()
  t.equal(await rows.count(), 100, 'of 120 connections the newest hundred')
  await connect(emptyIp)
  await seeRow('no-endpoints')

  const press = async (selector: string) => {
    await page.locator(selector).first().focus()
    await page.keyboard.press('Enter')
  }
  await press('#flows-verdicts button[data-value=no-endpoints]')
  await rows.nth(1).waitFor({ state: 'detached' })
  t.match((await texts())[0], /no-endpoints\s.*default\/empty:http\s+–/s)
  await press('#flows tr td:nth-child(3) button')
  const client = addressOf('client-pod', 'IPv4')
  await page.locator('#flows-chosen button', { hasText: client }).waitFor()
  await press('#flows-verdicts button[data-value=""]')
  await seeRow('forwarded')
  for (const text of await texts()) t.match(text, client, 'only from this client')

  await press('#flows-hold')
  const before = await texts()
  await connect(clusterIps.IPv4)
  await page.waitForTimeout(1_000)
  t.same(await texts(), before, 'held lines do not move')
  await press('#flows-hold')
  const [newest = ''] = (before[0] ?? '').split('\t')
  await rows.first().filter({ hasNotText: newest }).waitFor()
  t.equal(await page.evaluate(`document.activeElement?.id`), 'flows-hold', 'the focus stays')
  await press('#flows-chosen button')
  await page.locator('#flows-chosen button').waitFor({ state: 'detached' })

  for (const colorScheme of ['light', 'dark'] as const) {
    await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' })
    for (const width of [1440, 390]) {
      await page.setViewportSize({ width, height: 900 })
      const { x = 0, width: wide = 0 } = (await rows.first().locator('.kept').boundingBox()) ?? {}
      t.ok(x > 0 && x + wide < width, `the verdict is seen at ${width}`)
      t.same(await violations(page), [], `axe: ${colorScheme} ${width}`)
      if (pictures === undefined) continue
      await page
        .locator('#flows-card')
        .screenshot({ path: `${pictures}/dashboard-stream-${width}-${colorScheme}.png` })
    }
  }
  await page.emulateMedia({ colorScheme: 'light' })
  await page.setViewportSize({ width: 1280, height: 900 })
}
