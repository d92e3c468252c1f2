import { fileURLToPath } from 'node:url'
import { createInterface } from 'node:readline'
import { once } from 'node:events'
import type { World } from '../world/world.js'

export interface RunningProxy {
  isRunning(): boolean
  /** What it has written so far. */
  output(): string
  /** Once it has ended by itself. */
  exitCode(): number | null
  /** Ends it as an operator would, and waits. */
  stop(): Promise<void>
  /** Ends it at once, as a crash would. */
  kill(): Promise<void>
}

const command = fileURLToPath(new URL('../cli/main.js', import.meta.url))

/** Starts the daemon, this very program, on the node of a world; by another program if need be. */
export function runProxy(
  world: World,
  args: readonly string[],
  onLine: (line: string) => void = () => undefined,
  by: readonly string[] = [],
): RunningProxy {
  const child = world.spawn('node', [
    ...by,
    process.execPath,
    command,
    ...['--hostname-override', 'node-1', '--cluster-cidr', '10.244.0.0/16,fd00:10:244::/48'],
    ...['--metrics-bind-address', '127.0.0.1:10249', '--healthz-bind-address', '127.0.0.1:10256'],
    ...args,
  ])
  const chunks: string[] = []
  const keep = (text: string) => {
    chunks.push(text)
    // The latest is what explains a failure; a page may be open for days.
    if (chunks.length > 2000) chunks.splice(0, 1000)
  }
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => keep(text))
    createInterface({ input: stream }).on('line', onLine)
  }
  const exited = once(child, 'exit')
  return {
    isRunning: () => child.exitCode === null && child.signalCode === null,
    output: () => chunks.join(''),
    exitCode: () => child.exitCode,
    stop: async () => {
      child.kill('SIGTERM')
      await exited
    },
    kill: async () => {
      child.kill('SIGKILL')
      await exited
    },
  }
}
