import { fileURLToPath } from 'node:url'
import { createInterface } from 'node:readline'
import { once } from 'node:events'
import type { World } from '../world/world.js'

export interface RunningProxy {
  isRunning(): boolean
  /** What it has written so far. */
  output(): string
  /** The exit code, once the daemon has ended by itself; null before. */
  exitCode(): number | null
  /** Ends it as an operator would, and waits. */
  stop(): Promise<void>
  /** Ends it at once, as a crash would. */
  kill(): Promise<void>
}

const program = fileURLToPath(new URL('../../main.js', import.meta.url))

/** The command line of the daemon, which is this program. */
export function proxyCommand(args: readonly string[]): readonly string[] {
  return [process.execPath, program, ...args]
}

/** Starts the daemon on the node of a world. */
export function runProxy(
  world: World,
  args: readonly string[],
  onLine?: (line: string) => void,
  command = proxyCommand([]),
): RunningProxy {
  const flags = [
    ...['--hostname-override', 'node-1', '--cluster-cidr', '10.244.0.0/16,fd00:10:244::/48'],
    ...['--metrics-bind-address', '127.0.0.1:10249', '--healthz-bind-address', '127.0.0.1:10256'],
  ]
  return watchProxy(world.spawn('node', [...command, ...flags, ...args]), onLine)
}

/** A daemon that was just started. */
export function watchProxy(
  child: ReturnType<World['spawn']>,
  onLine: (line: string) => void = () => undefined,
): RunningProxy {
  const chunks: string[] = []
  const keep = (text: string) => {
    chunks.push(text)
    // The latest lines explain a failure. Older ones are dropped, as a page may be open for days.
    if (chunks.length > 2000) chunks.splice(0, 1000)
  }
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => keep(text))
    createInterface({ input: stream }).on('line', onLine)
  }
  const exited = once(child, 'exit')
  const end = async (signal: NodeJS.Signals) => {
    child.kill(signal)
    await exited
  }
  return {
    isRunning: () => child.exitCode === null && child.signalCode === null,
    output: () => chunks.join(''),
    exitCode: () => child.exitCode,
    stop: () => end('SIGTERM'),
    kill: () => end('SIGKILL'),
  }
}
