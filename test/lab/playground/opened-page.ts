import { existsSync } from 'node:fs'
import { createRequire } from 'node:module'
import { mkdir, readFile } from 'node:fs/promises'
import t from 'tap'
import { chromium, type Browser, type BrowserContextOptions, type Page } from 'playwright-core'
import { messageOf } from '../../../lib/errors.js'
import { runLivePage } from '../../../lib/lab/cli/playground-here.js'
import { nodeTestBed } from './node-test-bed.js'
import { patienceMs, until } from '../../support/until.js'
import type { ModeName } from '../../../lib/config/config.js'

export const browserPath = '/usr/bin/chromium'
export const hasBrowser = existsSync(browserPath)
export const skip =
  process.getuid?.() !== 0
    ? 'network namespaces need root'
    : hasBrowser
      ? false
      : `there is no ${browserPath}; apt-get install chromium`

const playwrightDisables = [
  ...['AvoidUnnecessaryBeforeUnloadCheckSync', 'DestroyProfileOnBrowserClose', 'HttpsUpgrades'],
  ...['HttpsFirstBalancedModeAutoEnable', 'LensOverlay', 'MediaRouter', 'PaintHolding'],
  ...['ThirdPartyStoragePartitioning', 'AvoidCorsURLLoaderRestartOnRedirect', 'OptimizationHints'],
  ...['NetworkTimeServiceQuerying', 'AimEnabled', 'PreconnectToSearch'],
]
// Each window has two more pages for the address bar, that nobody sees; they cost half of a test.
// Of two lists Chromium reads the last, so this one repeats what Playwright disables.
const disabled = [...playwrightDisables, 'WebUIOmniboxPopup', 'WebUIOmniboxAimPopup']

const browserFlags = [
  ...['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking'],
  ...['--disable-component-update', '--disable-sync', `--disable-features=${disabled.join(',')}`],
]

export interface OpenedPage {
  readonly page: Page
  readonly url: string
  readonly kubeconfig: string
  /** The errors of the page so far. */
  readonly complaints: readonly string[]
  /** Waits until an element of this kind has this text. */
  readonly see: (selector: string, text: string | RegExp) => Promise<void>
  readonly press: (name: string) => Promise<void>
  /** Clears the answers, sends 100 requests and returns the number of answers of each pod. */
  readonly answers: () => Promise<ReadonlyMap<string, number>>
  /** Asks until the expected pods answer. */
  readonly answersLike: (isWanted: (names: readonly string[]) => boolean) => Promise<boolean>
  /** Sends single requests until the log shows such a one. */
  readonly sendUntil: (wanted: RegExp) => Promise<boolean>
}

/** Starts a playground and opens its page in a real browser. */
export async function withOpenedPage(
  modes: readonly [ModeName, ...ModeName[]],
  act: (opened: OpenedPage) => Promise<void>,
  missing: readonly string[] = [],
): Promise<void> {
  const stop = new AbortController()
  let announce: (found: { url: string; kubeconfig: string }) => void = () => undefined
  const opened = new Promise<{ url: string; kubeconfig: string }>((resolve) => (announce = resolve))
  const running = runLivePage(
    {
      ...{ modes, missing, where: 'in network namespaces, as root', port: 0, opened: announce },
      buildTestBed: nodeTestBed(modes),
    },
    stop.signal,
  )
  const nowhere = { url: '', kubeconfig: '' }
  const found = await Promise.race([opened, running.then(() => nowhere)])
  try {
    await withBrowser({ ...found, mode: modes[0] }, act)
  } finally {
    stop.abort()
    await running
  }
}

export interface ServedPage {
  readonly url: string
  readonly kubeconfig: string
  /** The mode in which it starts. */
  readonly mode: ModeName
}

/** The faults that axe finds in the page as it is now. */
export async function violations(page: Page): Promise<readonly string[]> {
  await page.evaluate(
    await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8'),
  )
  return page.evaluate<string[]>(
    `axe.run().then(({ violations }) =>
      violations.map(({ id, nodes }) => id + ' ' + nodes.map((each) => each.target)))`,
  )
}

/** A busy machine starts a browser slowly. */
export const openBrowser = (executablePath = browserPath) =>
  chromium.launch({ executablePath, args: browserFlags, timeout: patienceMs })

let started: Promise<Browser> | undefined
t.teardown(async () => (await started)?.close())

/** One browser for all tests of a process: a start costs 5 s of a processor. A page sees itself alone. */
export const sharedBrowser = () => (started ??= openBrowser())

/** A page that waits as long as a busy machine needs. */
export async function newPage(
  browser: Browser,
  options: BrowserContextOptions = {},
): Promise<Page> {
  const page = await browser.newPage(options)
  page.setDefaultTimeout(patienceMs)
  return page
}

/** A page in that browser, and its errors. */
export async function pageIn(browser: Browser, url: string) {
  const page = await newPage(browser, { viewport: { width: 1280, height: 900 } })
  const complaints: string[] = []
  page.on('pageerror', ({ message }) => complaints.push(message))
  page.on('console', (line) => line.type() === 'error' && complaints.push(line.text()))
  await page.goto(url)
  return { page, complaints }
}

/** Opens a served page in a real browser. */
export async function withBrowser(
  { url, kubeconfig, mode }: ServedPage,
  act: (opened: OpenedPage) => Promise<void>,
): Promise<void> {
  const { page, complaints } = await pageIn(await sharedBrowser(), url)
  try {
    const see = (selector: string, text: string | RegExp) =>
      page.locator(selector, { hasText: text }).first().waitFor()
    const press = (name: string) => page.getByRole('button', { name, exact: true }).first().click()
    const clear = async () => {
      await press('clear')
      await page.locator('#bars .hint').waitFor()
    }
    const answersLike: OpenedPage['answersLike'] = async (isWanted) => {
      // Rules need some time to reach the kernel. Only later packets count.
      await until('the expected pods', async () => isWanted([...(await answers()).keys()]), 200)
      return true
    }
    const sendUntil: OpenedPage['sendUntil'] = async (wanted) => {
      await clear()
      const newest = page.locator('#log tr').first()
      let sent = 0
      const isSeen = async () => {
        await press('Send request')
        await see('#asked', `to ${++sent} request`)
        return wanted.test(await newest.innerText())
      }
      await until(String(wanted), isSeen, 200)
      return true
    }
    const answers = async () => {
      await clear()
      await press('Send 100')
      await see('#asked', 'to 100 requests')
      const rows = await page.locator('#bars .bar').allInnerTexts()
      return new Map(
        rows.map((row) => {
          const [name = '', count = ''] = row.split(/\s+/)
          return [name, Number(count)]
        }),
      )
    }
    await see('#status', `running in ${mode} mode`)
    await act({
      page,
      url,
      kubeconfig,
      complaints,
      see,
      press,
      answers,
      answersLike,
      sendUntil,
    })
  } catch (error) {
    const text = await page.locator('body').innerText().catch(messageOf)
    throw new Error(`${messageOf(error)}; the page shows: ${text.replace(/\s+/g, ' ')}`)
  } finally {
    await page.close()
  }
}

/** The page hears of its size before the next frame, and draws another picture. */
export async function becomeWide(page: Page, width: number, height: number): Promise<void> {
  await page.setViewportSize({ width, height })
  await page.evaluate('new Promise(requestAnimationFrame)')
}

/** The folder for screenshots, such as those of docs/images, if they are wanted. */
export const pictures = process.env['PLAYGROUND_PICTURES']

/** Saves screenshots of the page at both widths and in both colours, if requested. */
export async function picture(page: Page, name: string): Promise<void> {
  if (pictures === undefined) return
  await mkdir(pictures, { recursive: true })
  for (const colorScheme of ['light', 'dark'] as const) {
    await page.emulateMedia({ colorScheme })
    for (const [width, height] of [
      [1280, 900],
      [390, 844],
    ] as const) {
      await page.setViewportSize({ width, height })
      // A picture shows more while a packet moves.
      if ((await page.locator('#picture .stop').count()) === 0) {
        await page.locator('#send-1').click()
      }
      await page.waitForTimeout(500)
      await page.evaluate('scrollTo(0, 0)')
      const suffix = colorScheme === 'dark' ? '-dark' : ''
      await page.screenshot({ path: `${pictures}/playground-${name}-${width}${suffix}.png` })
    }
  }
  await page.emulateMedia({ colorScheme: 'light' })
  await page.setViewportSize({ width: 1280, height: 900 })
  await page
    .locator('section.rules')
    .screenshot({ path: `${pictures}/playground-${name}-rules.png` })
}
