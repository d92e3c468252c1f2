import { once } from 'node:events'
import { writeFile } from 'node:fs/promises'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import type { Fault as ApiFault } from '../support/faulty-api.js'
import type { World } from '../../lib/lab/world/world.js'
import type { ClusterObject } from './cluster.js'

export const apiPort = 6443

/**
 * `relay`: all is well. `garbage`: answers without sense. `silence`: no answer, and no end.
 * `frozen`: silence on the connections that are open, and answers on new ones.
 */
export type RelayBehaviour = 'relay' | 'garbage' | 'silence' | 'frozen'

export type ApiCommand =
  | { readonly op: 'listen' | 'compact' | 'restore' }
  | { readonly op: 'put' | 'remove'; readonly objects: readonly ClusterObject[] }
  | { readonly op: 'put-unchecked'; readonly collection: string; readonly object: object }
  | { readonly op: 'relay'; readonly behaviour: RelayBehaviour }
  | { readonly op: 'watches'; readonly how: 'cut' | 'expire' }
  | { readonly op: 'cut-every'; readonly ms: number }
  | { readonly op: 'fail'; readonly fault: ApiFault | undefined }

const main = fileURLToPath(new URL('./api-main.js', import.meta.url))
const keyOf = ({ kind, metadata }: ClusterObject) => `${kind} ${metadata.name}`

interface Running {
  readonly child: ReturnType<World['spawn']>
  /** The commands that wait for an answer, the oldest first. */
  readonly waiting: ((line: string) => void)[]
  complaints: string
}

/** The API server of a stage. A new process gets the objects of the old one before it listens. */
export class Api {
  readonly #world: World
  readonly #objects = new Map<string, ClusterObject>()
  #running: Running | undefined

  constructor(world: World) {
    this.#world = world
  }

  async writeKubeconfig(path: string): Promise<void> {
    const cluster = { name: 'c', cluster: { server: `http://127.0.0.1:${apiPort}` } }
    const context = { name: 'c', context: { cluster: 'c', user: 'u' } }
    const config = {
      ...{ apiVersion: 'v1', kind: 'Config', 'current-context': 'c' },
      ...{ clusters: [cluster], contexts: [context], users: [{ name: 'u', user: {} }] },
    }
    await writeFile(path, JSON.stringify(config))
  }

  async start(...flags: readonly string[]): Promise<void> {
    const child = this.#world.spawn('node', [process.execPath, main, ...flags])
    const running: Running = { child, waiting: [], complaints: '' }
    this.#running = running
    child.stderr.setEncoding('utf8').on('data', (text: string) => (running.complaints += text))
    createInterface({ input: child.stdout }).on('line', (line) => running.waiting.shift()?.(line))
    child.on('exit', () => {
      for (const resolve of running.waiting.splice(0)) resolve('failed: it has ended')
    })
    // A write to a killed process fails, but its end is reported elsewhere.
    child.stdin.on('error', () => undefined)
    await this.tell({ op: 'put', objects: [...this.#objects.values()] })
    await this.tell({ op: 'listen' })
  }

  signal(signal: NodeJS.Signals): void {
    this.#running?.child.kill(signal)
  }

  async kill(): Promise<void> {
    if (this.#running === undefined || !isAlive(this.#running)) return
    const { child } = this.#running
    const exited = once(child, 'exit')
    child.kill('SIGKILL')
    await exited
  }

  /** Puts objects. If no server runs, the next one begins with them. */
  async put(...objects: readonly ClusterObject[]): Promise<void> {
    for (const object of objects) this.#objects.set(keyOf(object), object)
    await this.#offer({ op: 'put', objects })
  }

  async remove(...objects: readonly ClusterObject[]): Promise<void> {
    for (const object of objects) this.#objects.delete(keyOf(object))
    await this.#offer({ op: 'remove', objects })
  }

  async tell(command: ApiCommand): Promise<void> {
    const running = this.#running
    if (running === undefined || !isAlive(running)) {
      throw new Error(`API server, ${command.op}: it does not run. ${running?.complaints ?? ''}`)
    }
    const answered = new Promise<string>((resolve) => running.waiting.push(resolve))
    running.child.stdin.write(`${JSON.stringify(command)}\n`)
    const answer = await answered
    if (answer !== 'ok')
      throw new Error(`API server, ${command.op}: ${answer}. ${running.complaints}`)
  }

  /** Sends a command. A server that is killed meanwhile need not answer. */
  async #offer(command: ApiCommand): Promise<void> {
    const running = this.#running
    if (running === undefined || !isAlive(running)) return
    try {
      await this.tell(command)
    } catch (error) {
      if (isAlive(running)) throw error
    }
  }
}

function isAlive({ child }: Running): boolean {
  return child.exitCode === null && child.signalCode === null
}
