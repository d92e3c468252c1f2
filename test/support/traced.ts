import { setTimeout as delay } from 'node:timers/promises'
import { ask, clusterIp } from '../e2e/proxy-world.js'
import type { World } from '../../lib/lab/world/world.js'
import { program } from './program.js'

/** Runs `kube-proxy trace` on the node of a world while a pod makes a connection. */

export const kubeProxy = (world: World, ...args: string[]) =>
  world.exec('node', [process.execPath, program, ...args])

interface Hop {
  readonly where: string
  readonly rule: string
  readonly owner: string
}

export interface Story {
  readonly from: string
  readonly to: string
  readonly inInterface: string
  readonly end: string
  readonly destination: string
  readonly hops: readonly Hop[]
  readonly afterwards: readonly string[]
}

/** Connects again and again until the command has seen a connection. */
export async function traced(
  world: World,
  target: readonly string[] = [`${clusterIp}:80`],
  send: () => Promise<unknown> = () => ask(world),
): Promise<Story> {
  const running = kubeProxy(world, 'trace', ...target, '--timeout', '600', '--json')
  let isDone = false
  void running.catch(() => undefined).then(() => (isDone = true))
  while (!isDone) {
    const began = performance.now()
    await send()
    // Each packet costs the kernel a line for each rule, and a slow machine has other work too.
    await delay(100 + performance.now() - began)
  }
  const { code, stdout, stderr } = await running
  if (code !== 0) throw new Error(stderr)
  return JSON.parse(stdout) as Story
}
