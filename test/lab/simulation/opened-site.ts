import { execFile } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { promisify } from 'node:util'
import { chromium } from 'playwright-core'
import type { Page } from 'playwright-core'
import { browserFlags, browserPath, pageIn } from '../playground/opened-page.js'

const script = fileURLToPath(new URL('../../../../scripts/site.mjs', import.meta.url))

export interface BuiltSite {
  readonly folder: string
  /** The page of the site, as a file URL. */
  readonly url: string
}

/** Builds the site into a new folder. */
export async function withSite(act: (site: BuiltSite) => Promise<void>): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), 'kube-proxy-site-'))
  try {
    await promisify(execFile)(process.execPath, [script, '--out', folder])
    await act({ folder, url: pathToFileURL(join(folder, 'index.html')).href })
  } finally {
    await rm(folder, { recursive: true })
  }
}

export interface OpenedSite {
  readonly page: Page
  /** The errors of the page so far. */
  readonly complaints: readonly string[]
  readonly see: (selector: string, text: string | RegExp) => Promise<void>
  readonly press: (name: string) => Promise<void>
}

/** Opens a file of the site in a real browser without network. */
export async function withOpenedSite(
  url: string,
  act: (opened: OpenedSite) => Promise<void>,
): Promise<void> {
  const browser = await chromium.launch({ executablePath: browserPath, args: browserFlags })
  try {
    const { page, complaints } = await pageIn(browser, url)
    const see = (selector: string, text: string | RegExp) =>
      page.locator(selector, { hasText: text }).first().waitFor()
    const press = (name: string) => page.getByRole('button', { name, exact: true }).first().click()
    await see('#status', /^running in/)
    await act({ page, complaints, see, press })
  } finally {
    await browser.close()
  }
}
