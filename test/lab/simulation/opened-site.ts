import { execFile } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { promisify } from 'node:util'
import type { Page } from 'playwright-core'
import t from 'tap'
import { pageIn, sharedBrowser } from '../playground/opened-page.js'

const script = fileURLToPath(new URL('../../../../scripts/site.mjs', import.meta.url))

export interface BuiltSite {
  readonly folder: string
  /** The page of the site, as a file URL. */
  readonly url: string
}

let built: Promise<BuiltSite> | undefined
t.teardown(async () => {
  if (built) await rm((await built).folder, { recursive: true })
})

/** The site in a folder, built once per process. */
export async function withSite(act: (site: BuiltSite) => Promise<void>): Promise<void> {
  await act(await (built ??= build()))
}

async function build(): Promise<BuiltSite> {
  const folder = await mkdtemp(join(tmpdir(), 'kube-proxy-site-'))
  await promisify(execFile)(process.execPath, [script, '--out', folder])
  return { folder, url: pathToFileURL(join(folder, 'index.html')).href }
}

export interface OpenedSite {
  readonly page: Page
  /** The errors of the page so far. */
  readonly complaints: readonly string[]
  readonly see: (selector: string, text: string | RegExp) => Promise<void>
  readonly press: (name: string) => Promise<void>
}

/** Opens a file of the site in a real browser without network. Each page sees itself alone. */
export async function withOpenedSite(
  url: string,
  act: (opened: OpenedSite) => Promise<void>,
): Promise<void> {
  const { page, complaints } = await pageIn(await sharedBrowser(), url)
  try {
    const see = (selector: string, text: string | RegExp) =>
      page.locator(selector, { hasText: text }).first().waitFor()
    const press = (name: string) => page.getByRole('button', { name, exact: true }).first().click()
    await see('#status', /^running in/)
    await act({ page, complaints, see, press })
  } finally {
    await page.close()
  }
}
