// A cache for the scripts that make or try a build for another machine. Its packages of npm have no
// dependencies beside them, and their scripts do not run.
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import { run } from '../build/test/support/debian-packages.js'

export const koffiVersion = JSON.parse(
  readFileSync('node_modules/koffi/package.json', 'utf8'),
).version

/**
 * A folder of the cache, filled anew unless it holds what is wanted. The file that is written last
 * proves that the folder is complete.
 */
export function cached(name, wanted, fill) {
  const home = process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache')
  const cache = join(home, 'kube-proxy-ts', name)
  const proof = join(cache, 'complete.json')
  const words = JSON.stringify({ ...wanted, koffiVersion })
  if (existsSync(proof) && readFileSync(proof, 'utf8') === words) return cache
  rmSync(cache, { recursive: true, force: true })
  mkdirSync(cache, { recursive: true })
  fill(cache)
  writeFileSync(proof, words)
  return cache
}

export function unpackNpm(name, target) {
  const folder = mkdtempSync(join(tmpdir(), 'npm-package-'))
  try {
    const file = run('npm', ['pack', '--silent', name], folder).trim().split('\n').at(-1)
    mkdirSync(target, { recursive: true })
    run('tar', ['-xzf', join(folder, file), '-C', target, '--strip-components=1'])
  } finally {
    rmSync(folder, { recursive: true })
  }
}
