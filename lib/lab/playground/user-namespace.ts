import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { ifPossible, messageOf } from '../../errors.js'
import { runCommand } from '../../kernel/command.js'
import { printable } from '../../state/names.js'
import { proxyCommand } from './proxy-process.js'

/** Set for the process inside, which ends when its input ends: it never outlives its parent. */
const insideVariable = 'KUBE_PROXY_TS_INSIDE'

/** A playground needs rights over network namespaces, and a /run of its own. */
const prepare = 'mount -t tmpfs tmpfs /run && mkdir /run/netns && exec "$@"'
const unshareArgs = ['--user', '--map-root-user', '--mount', 'sh', '-c', prepare, 'sh']

interface Rights {
  /** Where they come from; absent when there are none. */
  readonly where?: string
  /** Why root has none. */
  readonly refusal?: string
}

/** The rights of this process over networks. */
export async function rightsOf(): Promise<Rights> {
  if (process.getuid?.() !== 0) return {}
  // Root often lacks them in a container, and in a chroot whose root is no mount point.
  const refusal = await refusalOf(['--net', '--mount', 'true'])
  if (refusal !== undefined) return { refusal }
  const where = isInUserNamespace()
    ? 'without root, in a user namespace'
    : 'in network namespaces, as root'
  return { where }
}

export function isInUserNamespace(): boolean {
  const map = ifPossible(() => readFileSync('/proc/self/uid_map', 'utf8'))
  return map !== undefined && !/^\s*0\s+0\s+4294967295\s*$/.test(map)
}

/**
 * The error if the system refuses user namespaces to ordinary users; undefined if it allows them.
 */
export function refusalOfUserNamespace(): Promise<string | undefined> {
  return refusalOf([...unshareArgs, 'true'])
}

async function refusalOf(args: readonly string[]): Promise<string | undefined> {
  try {
    const { code, stderr } = await runCommand('unshare', args)
    if (code === 0) return undefined
    return firstLine(stderr.trim() || `unshare ended with ${code} and said nothing`)
  } catch (error) {
    return firstLine(messageOf(error))
  }
}

/** What a program said, as one line of a terminal and of the page. */
const firstLine = (text: string) => printable(text.split('\n', 1)[0] ?? '').slice(0, 200)

/**
 * Runs this program again with the same arguments, as root of a user namespace. The network stays
 * that of the machine, so a browser and kubectl can reach the page and the API server. Resolves to
 * its exit code.
 */
export async function runInUserNamespace(args: readonly string[]): Promise<number> {
  const child = spawn('unshare', [...unshareArgs, ...proxyCommand(args)], {
    // It has a session of its own, so that Ctrl-C reaches it only once, through this process.
    detached: true,
    stdio: ['pipe', 'inherit', 'inherit'],
    env: { ...process.env, [insideVariable]: '1' },
  })
  const passOn = (signal: NodeJS.Signals) => child.kill(signal)
  for (const name of passedOn) process.on(name, passOn)
  try {
    const [code] = (await once(child, 'exit')) as [number | null]
    return code ?? 1
  } finally {
    for (const name of passedOn) process.off(name, passOn)
  }
}

const passedOn = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const

/** Aborted when the process that started this one inside a user namespace has ended. */
export function starterGone(): AbortSignal {
  const controller = new AbortController()
  if (process.env[insideVariable] !== undefined) {
    process.stdin.resume().once('end', () => controller.abort())
  }
  return controller.signal
}
