// Unpacks one package of npm into a folder, without what it depends on and without its scripts.
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { run } from '../build/test/support/debian-packages.js'

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
