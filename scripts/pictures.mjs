// Makes the pictures in docs/images anew, with the tests of the pages: `npm run pictures`. Needs root and Chromium.
import { spawnSync } from 'node:child_process'
import { copyFileSync, existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const images = new URL('../docs/images/', import.meta.url).pathname
const tests = ['lab/playground/page', 'lab/playground/quality', 'lab/playground/without-rights']
const folder = mkdtempSync(join(tmpdir(), 'kube-proxy-pictures-'))
const env = { ...process.env, PLAYGROUND_PICTURES: folder, TAP_TIMEOUT: '600' }
try {
  for (const test of [...tests, 'page/page']) {
    const file = new URL(`../build/test/${test}.browser.test.js`, import.meta.url).pathname
    const { status } = spawnSync(process.execPath, [file], { env, stdio: ['ignore', 'ignore', 2] })
    if (status !== 0) throw new Error(`${file} failed: run it alone to see why`)
  }
  // The tests make more pictures than the documents show.
  for (const name of readdirSync(images)) {
    if (existsSync(join(folder, name))) copyFileSync(join(folder, name), join(images, name))
    else console.error(`no test makes ${name}`)
  }
} finally {
  rmSync(folder, { recursive: true })
}
