import { chmod, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Page } from 'playwright-core'
import { browserPath, openBrowser, pageIn } from '../lab/playground/opened-page.js'
import { runProxy } from '../support/program.js'
import { stopping, type ProxyWorld } from '../e2e/proxy-world.js'
import type { World } from '../../lib/lab/world/world.js'
import { until } from '../support/until.js'

export const dashboardUrl = 'http://127.0.0.1:8383'

export interface Opened {
  readonly page: Page
  /** The errors of the page so far. */
  readonly complaints: readonly string[]
}

/** Opens the dashboard of a daemon in a real browser on its node. */
export async function withDashboard(
  { world, folder }: ProxyWorld,
  args: readonly string[],
  act: (opened: Opened) => Promise<void>,
): Promise<void> {
  const flags = ['--manifests', folder, '--dashboard-address', '127.0.0.1:8383']
  const proxy = runProxy(world, [...flags, ...args])
  await stopping(proxy, async () => {
    await until('the dashboard listens', () => /"?dashboard"?/.test(proxy.output()))
    const browser = await openBrowser(await browserOn(world, folder))
    try {
      await act(await pageIn(browser, dashboardUrl))
    } finally {
      await browser.close()
    }
  })
}

/** A browser in the node's namespace, because the dashboard listens on loopback of the node. */
async function browserOn(world: World, folder: string): Promise<string> {
  const path = join(folder, 'browser')
  await writeFile(
    path,
    `#!/bin/sh\nexec ip netns exec ${world.namespaces.node} ${browserPath} "$@"\n`,
  )
  await chmod(path, 0o755)
  return path
}
