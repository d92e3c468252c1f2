import { existsSync } from 'node:fs'
import { chromium, type Page } from 'playwright-core'
import { addressOf } from '../lib/lab/world/topology.js'
import { dashboardUrl, withDashboard } from '../test/page/opened-dashboard.js'
import { endpoint, rawService, rawSlice } from '../test/state/objects.js'
import { runLivePage } from '../lib/lab/cli/playground-here.js'
import { withProxyWorld, write } from '../test/e2e/proxy-world.js'
import { pageReaders } from './support/page-readers.js'
import type { Peer } from './support/peers.js'
import type { BenchResults } from './support/results.js'

const browserPath = '/usr/bin/chromium'
const flags = [
  ...['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking'],
  ...['--disable-component-update', '--disable-sync'],
]
const services = 200
const loads = 5
const watchedMs = 5000

/** The page, over the playground and over a daemon: how soon it shows something, and how smooth it stays. */
export async function run(peers: readonly Peer[] = []): Promise<BenchResults> {
  if (process.getuid?.() !== 0 || !existsSync(browserPath)) {
    console.log(`skipped: needs root and ${browserPath}`)
    return []
  }
  return [...(await playground()), ...(await dashboard()), ...(await pageReaders(peers))]
}

async function playground(): Promise<BenchResults> {
  const stop = new AbortController()
  let announce: (url: string) => void = () => undefined
  const opened = new Promise<string>((resolve) => (announce = resolve))
  const running = runLivePage(
    { modes: ['nftables'], where: 'in a bench', port: 0, opened: ({ url }) => announce(url) },
    stop.signal,
  )
  const url = await Promise.race([opened, running.then(() => '')])
  const browser = await chromium.launch({ executablePath: browserPath, args: flags })
  try {
    const page = await browser.newPage({ viewport: { width: 1280, height: 900 } })
    await page.goto(url)
    await page.locator('#pods .state.ready').nth(2).waitFor()
    const few = await paints(page, url)
    await page.evaluate(createMany)
    await page.locator('#services-count', { hasText: String(services + 2) }).waitFor()
    const many = await paints(page, url)
    await page.locator('#continuous').click()
    const { worst, longTasks, median } = await page.evaluate<Smoothness>(watchFrames)
    const rows = [
      ['first paint, 2 Services', few.paint, '<= 1000'],
      ['first picture, 2 Services', few.picture, '<= 1000'],
      [`first paint, ${services} Services`, many.paint, '<= 1000'],
      [`first picture, ${services} Services`, many.picture, '<= 1000'],
      [`${services} Services, traffic: frame, median`, median, '<= 17'],
      [`${services} Services, traffic: longest frame of ${watchedMs} ms`, worst, '<= 100'],
      [`${services} Services, traffic: tasks over 50 ms`, longTasks, '<= 0'],
    ] as const
    return results(rows)
  } finally {
    await browser.close()
    stop.abort()
    await running
  }
}

/** Measures the dashboard while connections come in and endpoints change. */
async function dashboard(): Promise<BenchResults> {
  let rows: readonly (readonly [string, number, string])[] = []
  await withProxyWorld('dashboard', async (proxyWorld) => {
    const { world, folder } = proxyWorld
    await write(
      folder,
      'many.yaml',
      ...Array.from({ length: services }, (_, index) => many(index)).flat(),
    )
    const args = ['--proxy-mode', 'nftables', '--iptables-min-sync-period', '0s']
    await withDashboard(proxyWorld, args, async ({ page }) => {
      const { paint, picture } = await paints(page, dashboardUrl)
      const stop = new AbortController()
      const busy = (async () => {
        for (let round = 0; !stop.signal.aborted; round++) {
          await write(folder, 'one.yaml', ...many(services, 1 + (round % 3)))
          const request = { protocol: 'TCP', host: ipOf(0), port: 80, count: 10 } as const
          await world.agent('client-pod').flow(request)
          await new Promise((resolve) => setTimeout(resolve, 200))
        }
      })()
      const { worst, longTasks, median } = await page.evaluate<Smoothness>(watchFrames)
      stop.abort()
      await busy
      rows = [
        [`dashboard, first paint, ${services} Services`, paint, '<= 1000'],
        [`dashboard, first picture, ${services} Services`, picture, '<= 1000'],
        [`dashboard, ${services} Services, changes: frame, median`, median, '<= 17'],
        [`dashboard, ${services} Services, changes: longest frame`, worst, '<= 100'],
        [`dashboard, ${services} Services, changes: tasks over 50 ms`, longTasks, '<= 0'],
      ]
    })
  })
  return results(rows)
}

const ipOf = (index: number) => `10.96.${1 + Math.floor(index / 250)}.${1 + (index % 250)}`

function many(index: number, endpoints = 3): readonly object[] {
  const name = `many-${index}`
  const places = (['pod-1', 'pod-2', 'pod-4'] as const).slice(0, endpoints)
  return [
    rawService({ name, spec: { clusterIP: ipOf(index), clusterIPs: [ipOf(index)] } }),
    rawSlice({
      name: `${name}-1`,
      service: name,
      endpoints: places.map((place) => endpoint(addressOf(place, 'IPv4'), { node: 'node-1' })),
    }),
  ]
}

function results(
  rows: readonly (readonly [name: string, value: number, target: string])[],
): BenchResults {
  console.table(rows.map(([what, value, target]) => ({ what, value: value.toFixed(1), target })))
  return rows.map(([name, value, target]) => ({
    name,
    value,
    unit: name.includes('tasks') ? '' : 'ms',
    target,
  }))
}

/** Medians of several loads, in milliseconds after the navigation. */
async function paints(page: Page, url: string) {
  const paint: number[] = []
  const picture: number[] = []
  for (let load = 0; load < loads; load++) {
    await page.goto(url)
    await page.locator('#picture .plate').first().waitFor()
    const [first, view] = await page.evaluate<[number, number]>(
      `[performance.getEntriesByName('first-contentful-paint')[0].startTime, performance.getEntriesByName('first-view')[0].startTime]`,
    )
    paint.push(first)
    picture.push(view)
  }
  return { paint: middle(paint), picture: middle(picture) }
}

function middle(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0
}

/** Runs in the browser, like the script below. Creates Services with the same pods. */
const createMany = `(() => {
  const service = (index) => ({ apiVersion: 'v1', kind: 'Service',
    metadata: { name: 'many-' + index, namespace: 'default' },
    spec: { selector: { app: 'web' }, ports: [{ port: 80, targetPort: 8080 }] } })
  const yaml = Array.from({ length: ${services} }, (_, index) => JSON.stringify(service(index))).join('\\n---\\n')
  return fetch('/command', { method: 'POST', headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ do: 'apply', yaml }) }).then(() => undefined)
})()`

interface Smoothness {
  readonly median: number
  readonly worst: number
  readonly longTasks: number
}

const watchFrames = `new Promise((resolve) => {
  let longTasks = 0
  new PerformanceObserver((list) => (longTasks += list.getEntries().length)).observe({ type: 'longtask' })
  const frames = []
  const began = performance.now()
  let last = began
  const step = (now) => {
    frames.push(now - last)
    last = now
    if (now - began < ${watchedMs}) requestAnimationFrame(step)
    else {
      frames.sort((a, b) => a - b)
      resolve({ median: frames[frames.length >> 1], worst: frames.at(-1), longTasks })
    }
  }
  requestAnimationFrame(step)
})`
