import type { Test } from 'tap'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { runCommand } from './run-command.js'
import { program } from './program.js'
import { until } from './until.js'

/** Runs the daemon in the namespace of this test, as an operator does, and commands beside it. */

export const examples = fileURLToPath(new URL('../../../examples/services', import.meta.url))

/** The flags that describe this node to commands that do not ask the daemon. */
export const sourceFlags = [
  ...['--manifests', examples, '--cluster-cidr', '10.244.0.0/16,fd00:10:244::/48'],
  ...['--node', 'node-1'],
]

export const kubeProxyCommand = [process.execPath, program] as const

export const kubeProxy = (...args: readonly string[]) =>
  runCommand(process.execPath, [program, ...args])

export interface LiveDaemon {
  readonly pid: number
  readonly output: () => string
  /** After `SIGKILL` the rules stay, and nothing repairs them. */
  end(signal: 'SIGKILL' | 'SIGTERM'): Promise<void>
}

export async function startDaemon(t: Test, mode: string, ...args: string[]): Promise<LiveDaemon> {
  const flags = [
    ...['--proxy-mode', mode, '--manifests', examples, '--hostname-override', 'node-1'],
    ...['--cluster-cidr', '10.244.0.0/16,fd00:10:244::/48'],
    ...args,
  ]
  return startProxy(t, flags)
}

/** Starts the daemon with these flags only. */
export async function startProxy(t: Test, flags: readonly string[]): Promise<LiveDaemon> {
  const child = spawn(process.execPath, [program, ...flags], {
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const exited = once(child, 'exit')
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => (output += text))
  }
  const end = async (signal: NodeJS.Signals) => {
    if (child.exitCode === null && child.signalCode === null) child.kill(signal)
    await exited
  }
  t.teardown(() => end('SIGKILL'))
  const isReady = async () => {
    if (child.exitCode !== null) throw new Error(`the daemon ended: ${output}`)
    const ready = await fetch('http://127.0.0.1:10256/readyz').catch(() => undefined)
    return ready?.ok === true
  }
  await until(() => `the daemon to be ready: ${output}`, isReady, 25)
  return { pid: child.pid ?? 0, output: () => output, end }
}
