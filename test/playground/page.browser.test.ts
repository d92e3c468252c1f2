import { existsSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { get } from 'node:http'
import { chromium, type Page } from 'playwright-core'
import t from 'tap'
import { runLivePage } from '../../lib/playground/live-page.js'

const browserPath = '/usr/bin/chromium'
const skip =
  process.getuid?.() !== 0
    ? 'network namespaces need root'
    : existsSync(browserPath)
      ? false
      : `there is no ${browserPath}; apt-get install chromium`

const flags = [
  ...['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking'],
  ...['--disable-component-update', '--disable-sync'],
]

/** Set to keep screenshots, as for docs/images. */
const pictures = process.env['PLAYGROUND_PICTURES']

async function picture(page: Page, name: string): Promise<void> {
  if (pictures === undefined) return
  await mkdir(pictures, { recursive: true })
  await page.screenshot({ path: `${pictures}/${name}.png`, fullPage: true })
}

/** The status of a request with a Host header of choice. */
function statusFor(url: string, host: string): Promise<number> {
  return new Promise((resolve, reject) => {
    get(url, { headers: { host } }, (response) => {
      response.resume()
      resolve(response.statusCode ?? 0)
    }).on('error', reject)
  })
}

t.test('the page shows the way of a connection and what its controls do', { skip }, async (t) => {
  const stop = new AbortController()
  let announce: (url: string) => void = () => undefined
  const opened = new Promise<string>((resolve) => (announce = resolve))
  const running = runLivePage(
    {
      modes: ['iptables', 'nftables', 'userspace'],
      where: 'as root',
      port: 0,
      opened: ({ url }) => announce(url),
    },
    stop.signal,
  )
  const url = await Promise.race([opened, running.then(() => '')])
  const browser = await chromium.launch({ executablePath: browserPath, args: flags })
  t.teardown(async () => {
    await browser.close()
    stop.abort()
    await running
  })
  const page = await browser.newPage({ viewport: { width: 1280, height: 900 } })
  page.setDefaultTimeout(25_000)
  const complaints: string[] = []
  page.on('pageerror', ({ message }) => complaints.push(message))
  page.on('console', (line) => line.type() === 'error' && complaints.push(line.text()))
  await page.goto(url)
  const see = (selector: string, text: string) =>
    page.locator(selector, { hasText: text }).first().waitFor()
  const press = (name: string) => page.getByRole('button', { name, exact: true }).click()

  await see('#status', 'Running in iptables mode')
  const inThirds = () => page.locator('#ways .way', { hasText: '33.3 %' }).nth(2).waitFor()
  await inThirds()
  await see('#hops', 'KUBE-SERVICES')
  await press('100')
  await see('#asked', 'to 100 requests')
  t.equal(await page.locator('#bars .bar').count(), 3, 'every pod answered')
  await picture(page, 'playground-1280')

  await press('nftables')
  await see('#status', 'Running in nftables mode')
  await see('#hops', 'service-ips')
  await inThirds()
  await press('userspace')
  await see('#status', 'Running in userspace mode')
  await see('#ways', 'listener of this process')
  await press('clear')
  await press('1 request')
  await see('#asked', 'to 1 requests')
  const source = await page.locator('#log tr td').nth(3).innerText()
  t.match(source, /^(10\.244\.1\.1|192\.168\.50\.1)$/, 'US21: the pod saw the node, not the client')

  await press('One replica fewer')
  await see('#replicas', '2')
  await page.locator('#ways .way', { hasText: '50 %' }).nth(1).waitFor()
  await see('#rules .removed', '- ')
  await see('#kubectl', 'kubectl scale deployment web --replicas=2')

  await page.getByLabel('session affinity').check()
  await see('#kubectl', '"sessionAffinity":"ClientIP"')
  await see('#rules .added', 'affinity')
  await press('clear')
  await press('100')
  await see('#asked', 'to 100 requests')
  t.equal(await page.locator('#bars .bar').count(), 1, 'affinity: one pod answered them all')

  await page.setViewportSize({ width: 390, height: 844 })
  const overflow = await page.evaluate('document.documentElement.scrollWidth - innerWidth')
  t.equal(overflow, 0, 'nothing sticks out at 390 px')
  await picture(page, 'playground-390')

  const killed = await page.locator('#pods li span').first().innerText()
  await page.locator('#pods li button').first().click()
  await page.locator('#pods li', { hasText: killed }).waitFor({ state: 'detached' })

  t.same(complaints, [], 'no error in the console')
  t.equal(await statusFor(url, 'evil.example'), 403, 'a foreign Host header is refused')
  const body = JSON.stringify({ do: 'replicas', count: 1e9 })
  const json = { 'content-type': 'application/json' }
  const refused = await fetch(`${url}/command`, { method: 'POST', headers: json, body })
  t.equal(refused.status, 400, 'a command out of range is refused')
})
