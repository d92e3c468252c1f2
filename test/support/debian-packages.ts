import { execFileSync } from 'node:child_process'
import {
  existsSync,
  mkdirSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { messageOf } from '../../lib/errors.js'

/**
 * Debian packages of one suite, downloaded and unpacked into a folder. Nothing is installed, and
 * the lists of the machine do not change: the lists of each suite are in that folder. The suite
 * `own` uses the lists of this machine.
 */
export class Suite {
  readonly name: string
  readonly #folder: string
  readonly #options: readonly string[]

  private constructor(name: string, folder: string, options: readonly string[]) {
    this.name = name
    this.#folder = folder
    this.#options = options
  }

  /**
   * Reads the lists of a suite, if need be of another architecture, unless they were read in the
   * last hours. Throws if the mirror does not have the suite.
   */
  static open(name: string, folder: string, architecture?: string): Suite {
    if (name === 'own') return new Suite(name, folder, [])
    if (!/^[a-z][a-z-]*$/.test(name)) throw new Error(`${name} is no name of a suite`)
    const home = join(folder, 'apt', `${name}${architecture ?? ''}`)
    const folders = ['lists/partial', 'archives/partial', 'parts']
    for (const folder of folders) mkdirSync(join(home, folder), { recursive: true })
    const list = join(home, 'sources.list')
    writeFileSync(list, mirrors(name).join(''))
    const suite = new Suite(name, folder, [
      ...['-o', `Dir::State=${home}`, '-o', 'Dir::State::status=/dev/null'],
      ...['-o', `Dir::Cache=${home}`, '-o', `Dir::Etc::sourcelist=${list}`],
      // Container images switch these caches off, and then each question reads all lists again.
      ...['-o', 'Dir::Cache::pkgcache=pkgcache.bin', '-o', 'Dir::Cache::srcpkgcache=src.bin'],
      ...['-o', `Dir::Etc::sourceparts=${home}/parts`, '-o', 'APT::Sandbox::User=root'],
      ...(architecture === undefined
        ? []
        : [
            ...['-o', `APT::Architecture=${architecture}`],
            ...['-o', `APT::Architectures::=${architecture}`],
          ]),
    ])
    const read = join(home, 'read')
    if (wasReadLately(read)) return suite
    try {
      run('apt-get', [...suite.#options, '-q', 'update'])
      writeFileSync(read, '')
    } catch (error) {
      if (suite.version('libc6') === undefined) {
        throw new Error(`the mirror has no list of ${name}: ${lastLine(messageOf(error))}`)
      }
    }
    return suite
  }

  /** The version of a package that apt would install, or undefined. */
  version(name: string): string | undefined {
    const shown = run('apt-cache', [...this.#options, 'policy', name])
    return /Candidate: (?!\(none\))(\S+)/.exec(shown)?.[1]
  }

  /** The names of the packages that a package depends on, as it writes them. */
  dependsOn(name: string): readonly string[] {
    const shown = run('apt-cache', [...this.#options, 'show', '--no-all-versions', name])
    return (/^Depends: (.*)/m.exec(shown)?.[1] ?? '')
      .split(/[,|] */)
      .map((entry) => entry.trim().split(' ')[0] ?? '')
  }

  /** These packages and all that they need on an empty machine. */
  withNeeded(names: readonly string[]): readonly string[] {
    const args = ['-s', '-q', '--no-install-recommends', 'install', ...names]
    const shown = run('apt-get', [...this.#options, ...args])
    return Array.from(shown.matchAll(/^Inst (\S+)/gm), ([, name = '']) => name)
  }

  /** Unpacks packages into a folder that appears only when it is complete. */
  unpack(folder: string, names: readonly string[]): string {
    const to = join(this.#folder, folder)
    if (existsSync(to)) return to
    const part = `${to}.part`
    rmSync(part, { recursive: true, force: true })
    mkdirSync(join(part, 'archives'), { recursive: true })
    const archives = join(part, 'archives')
    run('apt-get', [...this.#options, '-q', 'download', ...names], archives)
    for (const file of readdirSync(archives)) run('dpkg-deb', ['-x', join(archives, file), part])
    rmSync(archives, { recursive: true })
    renameSync(part, to)
    return to
  }
}

/** A mirror keeps an old package longer than this after its lists name a newer one. */
const recentMs = 6 * 3_600_000

export const wasReadLately = (file: string) =>
  existsSync(file) && Date.now() - statSync(file).mtimeMs < recentMs

/** The sources of a suite at the mirrors that this machine uses, with its key for Debian. */
function mirrors(suite: string): readonly string[] {
  const shown = run('apt-get', [
    'indextargets',
    ...['--format', '$(REPO_URI)', 'Created-By: Packages', 'Origin: Debian'],
  ])
  const key = '/usr/share/keyrings/debian-archive-keyring.gpg'
  return [...new Set(shown.split('\n'))].flatMap((uri) => {
    const isSecurity = uri.includes('security')
    if (uri === '' || (isSecurity && /-backports$|^sid$/.test(suite))) return []
    const name = isSecurity ? `${suite}-security` : suite
    return [`deb [signed-by=${key}] ${uri} ${name} main\n`]
  })
}

export function run(file: string, args: readonly string[], cwd?: string): string {
  return execFileSync(file, args, {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'pipe'],
    maxBuffer: 1 << 28,
    timeout: 600_000,
    env: { ...process.env, LC_ALL: 'C', PATH: `${process.env.PATH ?? ''}:/usr/sbin:/sbin` },
    ...(cwd === undefined ? {} : { cwd }),
  })
}

const lastLine = (text: string) => text.trim().split('\n').at(-1) ?? ''
