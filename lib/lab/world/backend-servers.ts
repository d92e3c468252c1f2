import { createSocket, type Socket as UdpSocket } from 'node:dgram'
import { once } from 'node:events'
import { createServer, type Server, type Socket } from 'node:net'
import { hostPort } from '../../state/ip.js'
import { probeWord, type Answered, type BackendReply, type ServeRequest } from './agent-protocol.js'
import { openSctpServerSocket } from './native-socket.js'
import { readProxyHeader, type Announced } from './proxy-header-reader.js'

export interface BackendServers {
  close(): Promise<void>
}

/**
 * Serves every address and port of the request; each message is answered with name and source,
 * and an HTTP request with both in words.
 */
export async function startBackendServers(
  request: ServeRequest,
  told: (answered: Answered) => void = () => undefined,
): Promise<BackendServers> {
  const servers: Server[] = []
  const udpSockets: UdpSocket[] = []
  const connections = new Set<Socket>()
  const starts: Promise<unknown>[] = []
  for (const host of request.addresses) {
    for (const port of request.ports) {
      for (const protocol of request.protocols) {
        const tell: Tell = (peer, line = '') => {
          const source = hostPort(peer.address, peer.port)
          told({ protocol, source, at: hostPort(host, port), line })
        }
        if (protocol === 'UDP') {
          const socket = serveUdp(request.name, host, tell)
          udpSockets.push(socket)
          starts.push(once(socket, 'listening'))
          socket.bind({ port, address: host })
        } else {
          const server = serveStream(request.name, connections, tell)
          servers.push(server)
          starts.push(once(server, 'listening'))
          if (protocol === 'TCP') server.listen({ host, port, ipv6Only: true })
          else server.listen({ fd: openSctpServerSocket(host, port) })
        }
      }
    }
  }
  const close = async () => {
    for (const connection of connections) connection.destroy()
    for (const socket of udpSockets) socket.close()
    await Promise.all(servers.map((server) => once(server.close(), 'close')))
  }
  try {
    await Promise.all(starts)
  } catch (error) {
    // Nobody else would end the servers that could start.
    await close()
    throw error
  }
  return { close }
}

/** Told of each request that is answered. */
type Tell = (peer: Peer, line?: string) => void

function serveStream(name: string, connections: Set<Socket>, tell: Tell): Server {
  return createServer({ allowHalfOpen: true }, (socket) => {
    connections.add(socket)
    socket.on('close', () => connections.delete(socket))
    socket.on('error', () => socket.destroy())
    let pending = ''
    let isFirst = true
    let owed: number | undefined
    let announced: Announced | undefined
    const reply = (size: number) => replyText(name, { ...peerOf(socket), announced }, size)
    socket.setEncoding('latin1').on('data', (chunk: string) => {
      // The rest of a request that is answered is of no use.
      if (socket.writableEnded) return
      pending += chunk
      if (pending.length > longestRequest) {
        socket.destroy()
        return
      }
      const header = isFirst ? readProxyHeader(pending) : undefined
      announced ??= header?.announced
      pending = pending.slice(header?.length ?? 0)
      isFirst = false
      if (isHttp.test(pending)) {
        if (/\r?\n\r?\n/.test(pending)) {
          tell(peerOf(socket), /^.*/.exec(pending)?.[0].slice(0, longestLine))
          socket.end(httpReply(name, peerOf(socket).address))
        }
        return
      }
      for (let end = pending.indexOf('\n'); end >= 0; end = pending.indexOf('\n')) {
        const line = pending.slice(0, end)
        pending = pending.slice(end + 1)
        // A client that says `end` wants its reply only after it has closed its side.
        if (!line.startsWith(probeWord)) tell(peerOf(socket))
        if (line.startsWith('end')) owed = line.length
        else socket.write(reply(line.length))
      }
    })
    socket.on('end', () => {
      if (owed !== undefined) socket.write(reply(owed))
      socket.end()
    })
  })
}

/** The most that is reported of the first line of a request. */
const longestLine = 200
/** A line, or a head of HTTP, that has not ended after so many bytes never ends. */
const longestRequest = 1024 * 1024
/** The first line of curl, a browser or a health check. */
const isHttp = /^[A-Z]+ \S+ HTTP\/1\.[01]\r?\n/

function httpReply(name: string, client: string): string {
  const body = `${name} answers ${client}\n`
  const head = [
    'HTTP/1.1 200 OK',
    'content-type: text/plain; charset=utf-8',
    `content-length: ${Buffer.byteLength(body)}`,
    'connection: close',
  ]
  return `${head.join('\r\n')}\r\n\r\n${body}`
}

function serveUdp(name: string, host: string, tell: Tell): UdpSocket {
  const socket = createSocket(host.includes(':') ? 'udp6' : 'udp4')
  socket.on('message', (message, peer) => {
    const asked = message.toString('latin1')
    const header = readProxyHeader(asked)
    const size = message.length - (header?.length ?? 0)
    const { address, port } = peer
    if (!asked.startsWith(probeWord, header?.length)) tell(peer)
    const text = replyText(name, { address, port, announced: header?.announced }, size)
    socket.send(text, port, address)
  })
  // A client that has closed its socket answers with ICMP, which is no error here.
  socket.on('error', () => undefined)
  return socket
}

interface Peer {
  readonly address: string
  readonly port: number
  readonly announced?: Announced | undefined
}

function peerOf(socket: Socket): Peer {
  return { address: socket.remoteAddress ?? '', port: socket.remotePort ?? 0 }
}

function replyText(name: string, peer: Peer, size: number): string {
  const told = peer.announced === undefined ? {} : { announced: peer.announced }
  const reply: BackendReply = { backend: name, source: peer.address, port: peer.port, ...told }
  const bare = JSON.stringify(reply)
  const missing = size - bare.length - '"pad":"",'.length
  return `${missing > 0 ? JSON.stringify({ ...reply, pad: 'x'.repeat(missing) }) : bare}\n`
}
