import { spawn, type ChildProcessByStdio } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { readlinkSync, writeFileSync } from 'node:fs'
import type { Readable, Writable } from 'node:stream'
import { untilThere } from './until.js'

/** Starts the playground as somebody does in a terminal. */

const command = fileURLToPath(new URL('../../lib/main.js', import.meta.url))

/** An ordinary user without any right. */
export const ordinaryUser = ['--reuid', '12345', '--regid', '12345', '--clear-groups']

/** Root of a container, without any right. */
export const powerlessRoot = ['--bounding-set', '-all', '--inh-caps', '-all']

export interface Played {
  readonly pid: number
  readonly output: () => string
  readonly ended: Promise<number | null>
  readonly signal: (name: NodeJS.Signals) => void
  readonly said: (text: RegExp) => Promise<RegExpExecArray>
}

export function play(args: readonly string[], wrapper: readonly string[] = []): Played {
  return followed(start([...wrapper, process.execPath, command, 'playground', ...args]))
}

/**
 * Starts it as a user to whom the kernel refuses user namespaces, by default an ordinary one. The
 * user is inside a namespace that allows no others, so that nobody else on this machine is limited.
 */
export async function playWithoutRights(
  args: readonly string[],
  who: readonly string[] = ordinaryUser,
): Promise<Played> {
  const limit = 'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv "$@"'
  const child = start([
    ...['unshare', '--user', 'sh', '-c', `read -r _ && exec sh -c '${limit}' sh "$@"`, 'sh'],
    ...[...who, process.execPath, command, 'playground', ...args],
  ])
  const own = readlinkSync('/proc/self/ns/user')
  while (readlinkSync(`/proc/${child.pid}/ns/user`) === own) {
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
  for (const map of ['uid_map', 'gid_map']) writeFileSync(`/proc/${child.pid}/${map}`, '0 0 65536')
  child.stdin.end('\n')
  return followed(child)
}

function start([file = '', ...rest]: readonly string[]) {
  return spawn(file, rest, { stdio: ['pipe', 'pipe', 'pipe'] })
}

function followed(child: ChildProcessByStdio<Writable, Readable, Readable>): Played {
  const chunks: string[] = []
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => chunks.push(text))
  }
  const output = () => chunks.join('')
  const ended = once(child, 'exit').then(([code]) => code as number | null)
  const said = (text: RegExp) =>
    untilThere(
      () => `${text.source} in what it said:\n${output()}`,
      () => text.exec(output()),
    )
  return {
    pid: child.pid ?? 0,
    output,
    ended,
    signal: (name) => void child.kill(name),
    said,
  }
}
