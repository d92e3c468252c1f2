/** The builds under test, inside the namespaces of `npm run windows` and `npm run image-arm64`. */
import { spawn, type ChildProcess } from 'node:child_process'
import { closeSync, mkdirSync, openSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { once } from 'node:events'
import { join } from 'node:path'

/** The folder with an unpacked image or Debian's Wine. The namespace has mounts for it. */
const room = process.env['ROOM'] ?? ''

/** The path for this process of a path in the room. */
export const inRoom = (path: string) => join(room, path)

/** The environment of Wine. It keeps Wine from starting helpers without end when one fails. */
const wineEnvironment = {
  HOME: '/home',
  PATH: '/usr/sbin:/usr/bin:/bin',
  // Without these two no program can start another.
  WINEPATH: 'C:\\windows\\system32',
  SystemRoot: 'C:\\windows',
  WINEPREFIX: '/home/wine',
  WINESERVER: '/usr/lib/wine/wineserver64',
  WINEDEBUG: '-all',
  WINEBOOTSTRAPMODE: '1',
  WINEDLLOVERRIDES: 'mscoree,mshtml=;explorer.exe,winedbg.exe,winedevice.exe,services.exe=d',
  ProgramData: 'C:\\ProgramData',
}

export const builds = ['Windows', 'Linux', 'arm64'] as const
export type Build = (typeof builds)[number]

interface Program {
  readonly command: string
  readonly args: readonly string[]
  readonly env: NodeJS.ProcessEnv
}

/** The command that runs a script with a build of Node.js. Paths in `args` are below /tmp. */
function programOf(build: Build, script: string, args: readonly string[]): Program {
  if (build === 'Linux') {
    const own = args.map((arg) => arg.replace(/^\/tmp/, inRoom('/tmp')))
    return { command: process.execPath, args: [`build/lib/${script}`, ...own], env: process.env }
  }
  if (build === 'arm64') {
    const node = ['/usr/bin/node', `/app/build/lib/${script}`]
    return {
      command: 'chroot',
      args: [room, ...node, ...args],
      env: { PATH: '/usr/sbin:/usr/bin' },
    }
  }
  const own = args.map((arg) => (arg.startsWith('/') ? windowsPath(arg) : arg))
  const node = [windowsPath('/node/bin/node.exe'), windowsPath(`/app/build/lib/${script}`)]
  const wine = ['/usr/lib/wine/wine64', ...node]
  return { command: 'chroot', args: [room, ...wine, ...own], env: wineEnvironment }
}

const windowsPath = (path: string) => `Z:${path.replaceAll('/', '\\')}`

/**
 * A process. Its output goes to a file, because programs under Wine cannot write to Linux pipes.
 */
export class Started {
  readonly #child: ChildProcess
  readonly #file: string

  /** `inside` is a command that runs the process elsewhere. */
  constructor(
    build: Build,
    script: string,
    args: readonly string[],
    inside: readonly string[] = [],
  ) {
    const program = programOf(build, script, args)
    const [command = '', ...words] = [...inside, program.command, ...program.args]
    this.#file = inRoom(`/tmp/${process.hrtime.bigint()}.log`)
    const fd = openSync(this.#file, 'w')
    this.#child = spawn(command, words, { env: program.env, stdio: ['ignore', fd, fd] })
    closeSync(fd)
  }

  get output(): string {
    return readFileSync(this.#file, 'utf8')
  }

  get hasEnded(): boolean {
    return this.#child.exitCode !== null || this.#child.signalCode !== null
  }

  async ended(): Promise<number | null> {
    if (!this.hasEnded) await once(this.#child, 'exit')
    return this.#child.exitCode
  }

  /** Sends Ctrl-C. Wine makes this event of SIGINT; a Ctrl-Break would kill. */
  interrupt(): void {
    this.#child.kill('SIGINT')
  }

  async kill(): Promise<void> {
    if (this.hasEnded) return
    this.#child.kill('SIGKILL')
    await once(this.#child, 'exit')
  }
}

/** A folder of manifests for both builds. Writes are renames, so that nobody reads half a file. */
export class Manifests {
  readonly path: string
  readonly #own: string

  constructor(name: string) {
    this.path = `/tmp/${name}`
    this.#own = inRoom(this.path)
    mkdirSync(this.#own)
  }

  write(items: readonly object[]): void {
    const next = join(this.#own, '.next')
    writeFileSync(next, JSON.stringify({ apiVersion: 'v1', kind: 'List', items }))
    renameSync(next, join(this.#own, 'objects.json'))
  }
}
