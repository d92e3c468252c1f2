/**
 * Two clients of a UDP Service, one with a connected socket and one without; each asks every two
 * milliseconds. They print a line of JSON whenever another endpoint answers.
 * Usage: udp-clients.js CGROUP ADDRESS PORT; an empty CGROUP is that of this process
 */
import { createSocket, type Socket } from 'node:dgram'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { BackendReply } from '../../lib/lab/world/agent-protocol.js'

export interface EndpointSeen {
  readonly client: 'connected' | 'unconnected'
  readonly backend: string
  /** Milliseconds since 1970. */
  readonly at: number
}

const everyMs = 2
const [cgroup = '', address = '', port = ''] = process.argv.slice(2)
if (cgroup !== '') writeFileSync(join(cgroup, 'cgroup.procs'), '0')

class Client {
  readonly #client: EndpointSeen['client']
  #socket: Socket
  #backend = ''

  constructor(client: EndpointSeen['client']) {
    this.#client = client
    this.#socket = this.#open()
    setInterval(() => this.#ask(), everyMs)
  }

  #open(): Socket {
    const socket = createSocket('udp4')
    socket.on('message', (message) => this.#heard(message))
    // A socket whose endpoint is gone fails; its owner opens another one.
    socket.on('error', () => this.#reopen(socket))
    if (this.#client === 'connected') socket.connect(Number(port), address)
    return socket
  }

  #reopen(socket: Socket): void {
    if (socket !== this.#socket) return
    socket.removeAllListeners('message').close()
    this.#socket = this.#open()
  }

  #ask(): void {
    const socket = this.#socket
    const failed = (error: Error | null) => {
      if (error) this.#reopen(socket)
    }
    try {
      if (this.#client === 'connected') socket.send('{}', failed)
      else socket.send('{}', Number(port), address, failed)
    } catch {
      // The socket is not connected yet; the next turn asks.
    }
  }

  #heard(message: Buffer): void {
    const { backend } = JSON.parse(message.toString()) as BackendReply
    if (backend === this.#backend) return
    this.#backend = backend
    const seen = { client: this.#client, backend, at: performance.timeOrigin + performance.now() }
    process.stdout.write(`${JSON.stringify(seen satisfies EndpointSeen)}\n`)
  }
}

new Client('connected')
new Client('unconnected')
