import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { runCommand } from '../../kernel/command.js'

const command = fileURLToPath(new URL('../../main.js', import.meta.url))

/** Set for the process inside: it ends when its input does, so it never outlives the one outside. */
const insideVariable = 'KUBE_PROXY_TS_INSIDE'

/** What a playground needs: rights of its own over network namespaces and what is in /run. */
const prepare = 'mount -t tmpfs tmpfs /run && mkdir /run/netns && exec "$@"'
const unshareArgs = ['--user', '--map-root-user', '--mount', 'sh', '-c', prepare, 'sh']

/** How this process came to its rights over networks; undefined when it has none. */
export async function rightsOf(): Promise<string | undefined> {
  if (process.getuid?.() !== 0) return undefined
  // In a container root may be root of very little.
  if ((await refusalOf(['--net', '--mount', 'true'])) !== undefined) return undefined
  return isInUserNamespace()
    ? 'without root, in a user namespace'
    : 'in network namespaces, as root'
}

export function isInUserNamespace(): boolean {
  try {
    return !/^\s*0\s+0\s+4294967295\s*$/.test(readFileSync('/proc/self/uid_map', 'utf8'))
  } catch {
    return false
  }
}

/** Whether the system lets ordinary users have user namespaces; if not, what it said. */
export function refusalOfUserNamespace(): Promise<string | undefined> {
  return refusalOf([...unshareArgs, 'true'])
}

async function refusalOf(args: readonly string[]): Promise<string | undefined> {
  try {
    const { code, stderr } = await runCommand('unshare', args)
    return code === 0 ? undefined : stderr.trim()
  } catch (error) {
    return error instanceof Error ? error.message : String(error)
  }
}

/**
 * Runs this program again with the same arguments, as root of a user namespace. The network
 * stays that of the machine, so the page and the API server are where a browser and kubectl
 * find them. Resolves to its exit code.
 */
export async function runInUserNamespace(args: readonly string[]): Promise<number> {
  const child = spawn('unshare', [...unshareArgs, process.execPath, command, ...args], {
    // In a session of its own: a Ctrl-C reaches it once, through us, and not twice.
    detached: true,
    stdio: ['pipe', 'inherit', 'inherit'],
    env: { ...process.env, [insideVariable]: '1' },
  })
  const passOn = (signal: NodeJS.Signals) => child.kill(signal)
  process.on('SIGINT', passOn)
  process.on('SIGTERM', passOn)
  try {
    const [code] = (await once(child, 'exit')) as [number | null]
    return code ?? 1
  } finally {
    process.off('SIGINT', passOn)
    process.off('SIGTERM', passOn)
  }
}

/** Aborted when whoever started this process inside a user namespace is gone. */
export function starterGone(): AbortSignal {
  const controller = new AbortController()
  if (process.env[insideVariable] !== undefined) {
    process.stdin.resume().once('end', () => controller.abort())
  }
  return controller.signal
}
