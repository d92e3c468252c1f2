import { readFileSync } from 'node:fs'
import { basename } from 'node:path'
import { pause } from '../async.js'
import { ConfigError, KernelError, SourceError } from '../errors.js'
import { systemHere } from '../platform.js'
import { printable } from '../state/names.js'
import type { Command } from 'commander'

type Terminal = Pick<NodeJS.WriteStream, 'isTTY'>

/** A dumb terminal, such as the shell in an editor, prints control sequences as text. */
export function takesControl({ isTTY }: Terminal): boolean {
  return isTTY && process.env['TERM'] !== 'dumb'
}

/** Colours are for such terminals, and there only without https://no-color.org. */
export function showsColours(stream: Terminal): boolean {
  return takesControl(stream) && process.env['NO_COLOR'] === undefined
}

/**
 * Aborted by SIGTERM or SIGINT, so that the program can drain; on Windows by Ctrl-C, Ctrl-Break and
 * the end of the console, which Windows gives a few seconds. A second signal ends the process at
 * once. A terminal that is closed may send SIGHUP twice, from its shell and from the kernel, so a
 * second one ends nothing. `more` are signals that stop one command only.
 */
export function stopSignal(...more: readonly NodeJS.Signals[]): AbortSignal {
  const controller = new AbortController()
  const stop = () => {
    if (controller.signal.aborted) process.exit(1)
    controller.abort()
  }
  const hangUp = () => controller.abort()
  const ofSystem: NodeJS.Signals[] = systemHere() === 'win32' ? ['SIGBREAK', 'SIGHUP'] : []
  const names = new Set<NodeJS.Signals>(['SIGTERM', 'SIGINT', ...ofSystem, ...more])
  for (const name of names) process.on(name, name === 'SIGHUP' ? hangUp : stop)
  return controller.signal
}

/** A busy machine may tell of the end of a program before it delivers the same Ctrl-C to this one. */
export const isInterrupted = (error: unknown) =>
  error instanceof KernelError && error.kind === 'interrupted'

/**
 * Undefined when the signal came meanwhile. Ctrl-C also ends the programs that a command runs, and
 * their failure is then no failure of the command.
 */
export async function unlessStopped<T>(
  stop: AbortSignal,
  doing: Promise<T>,
): Promise<T | undefined> {
  try {
    const done = await doing
    return stop.aborted ? undefined : done
  } catch (error) {
    if (stop.aborted || isInterrupted(error)) return undefined
    throw error
  }
}

/**
 * Asks and shows the answer, again and again until `stop`; only once without `everyMs`. A failure in
 * the middle is printed once, and the watch goes on: a proxy may be restarting.
 */
export async function watch<T>(
  everyMs: number | undefined,
  stop: AbortSignal,
  ask: () => Promise<T>,
  show: (answer: T, isFirst: boolean) => void,
): Promise<void> {
  let told = ''
  for (let isFirst = true; ; isFirst = false) {
    try {
      const answer = await unlessStopped(stop, ask())
      if (answer === undefined) return
      show(answer, isFirst)
      told = ''
    } catch (error) {
      if (isFirst || !(error instanceof SourceError || error instanceof ConfigError)) throw error
      if (error.message !== told) process.stderr.write(`${printable(error.message)}\n`)
      told = error.message
    }
    if (everyMs === undefined) return
    await pause(everyMs, stop)
    if (stop.aborted) return
  }
}

/** The failure of a command: its exit code, and the texts to print, the message first. */
interface Failure {
  readonly exitCode: 1 | 2
  readonly texts: readonly string[]
}

export const installKoffi = 'install this package with its optional packages'
export const withoutKoffi = `koffi does not load here, and this command asks the kernel through it; ${installKoffi}`

/** Whether koffi is missing, or has no binary for this machine. Its errors name modules only. */
export const isAboutKoffi = (error: unknown) =>
  error instanceof Error && /[/\\']koffi/.test(error.stack ?? '')

export function failureOf(error: unknown): Failure {
  if (error instanceof ConfigError) return { exitCode: 2, texts: [error.message] }
  if (error instanceof KernelError && error.detail !== '') {
    return { exitCode: 1, texts: [error.message, error.detail.trimEnd()] }
  }
  if (error instanceof KernelError || error instanceof SourceError) {
    return { exitCode: 1, texts: [error.message] }
  }
  if (isAboutKoffi(error)) return { exitCode: 1, texts: [withoutKoffi] }
  // Any other error is a bug in this program. The stack shows where.
  const text = error instanceof Error ? (error.stack ?? error.message) : String(error)
  return { exitCode: 1, texts: [text] }
}

/** The arguments with `-o=json`, as users of kubectl write it, in the form of commander, `-ojson`. */
export function withoutEquals(argv: readonly string[]): string[] {
  return argv.map((argument) => argument.replace(/^(-[a-zA-Z])=(?=.)/, '$1'))
}

/**
 * The command that the user typed. The Debian package names it after the project, which leaves room
 * for kube-proxy itself.
 */
export function calledAs(): string {
  const name = basename(process.argv[1] ?? '')
  return name === 'kube-proxy-ts' ? name : 'kube-proxy'
}

/** The release of kube-proxy whose behaviour this program equals. */
const kubernetesVersion = '1.36'

/** `kube-proxy-ts v0.1.0 (behaves as Kubernetes v1.36)` */
export function versionText(): string {
  return `kube-proxy-ts v${packageVersion()} (behaves as Kubernetes v${kubernetesVersion})`
}

/** The version in the package.json beside the build. */
function packageVersion(): string {
  const text = readFileSync(new URL('../../../package.json', import.meta.url), 'utf8')
  const { version } = JSON.parse(text) as { readonly version: string }
  return version
}

/** Subcommands by name. Only the one that is called is loaded, which makes the start fast. */
export type Subcommands = Readonly<Record<string, () => Promise<(program: Command) => void>>>

/** Adds the subcommand of this name, or all if there is none. */
export async function addSubcommands(
  program: Command,
  commands: Subcommands,
  name: string,
): Promise<void> {
  const called = Object.hasOwn(commands, name) ? [commands[name]] : Object.values(commands)
  for (const load of called) (await load?.())?.(program)
}
