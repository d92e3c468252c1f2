import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'

const bridge = 'nodes'

/** Many nodes and a server on one switch, as network namespaces. */
export class NodeNetwork {
  readonly serverAddress = '10.77.0.1'
  readonly #prefix = `bench-${process.pid}`
  readonly #namespaces: string[] = []

  constructor() {
    const server = this.#add('server')
    ip('-n', server, 'link', 'add', bridge, 'type', 'bridge')
    ip('-n', server, 'address', 'add', `${this.serverAddress}/16`, 'dev', bridge)
    ip('-n', server, 'link', 'set', bridge, 'up')
  }

  /** The namespace of the server. */
  get server(): string {
    return `${this.#prefix}-server`
  }

  /** Returns the namespace of a new node. */
  addNode(): string {
    const number = this.#namespaces.length
    const node = this.#add(`${number}`)
    const port = `node${number}`
    const peer = ['peer', 'name', 'eth0', 'netns', node]
    ip('-n', this.server, 'link', 'add', port, 'type', 'veth', ...peer)
    ip('-n', this.server, 'link', 'set', port, 'master', bridge, 'up')
    ip('-n', node, 'address', 'add', `10.77.1.${number}/16`, 'dev', 'eth0')
    ip('-n', node, 'link', 'set', 'eth0', 'up')
    return node
  }

  /** The bytes that have left the namespace of this process, with the headers of packets. */
  sentBytes(serverPid: number): number {
    const devices = readFileSync(`/proc/${serverPid}/net/dev`, 'utf8')
    const [, counters = ''] = new RegExp(`^\\s*${bridge}:(.*)$`, 'm').exec(devices) ?? []
    return Number(counters.trim().split(/\s+/)[8])
  }

  close(): void {
    for (const namespace of this.#namespaces) ip('netns', 'delete', namespace)
  }

  #add(name: string): string {
    const namespace = `${this.#prefix}-${name}`
    ip('netns', 'add', namespace)
    this.#namespaces.push(namespace)
    ip('-n', namespace, 'link', 'set', 'lo', 'up')
    return namespace
  }
}

function ip(...argv: readonly string[]): void {
  execFileSync('ip', argv)
}
