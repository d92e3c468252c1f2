/**
 * The API server of a stage is a process, so that it can be stopped and killed. Each line on stdin
 * is a command; the answer is a line with `ok` or an error. Clients reach it through a relay, which
 * can misbehave in ways that an HTTP server cannot.
 */
import { createServer, connect, type Socket } from 'node:net'
import { createInterface } from 'node:readline'
import { parseArgs } from 'node:util'
import { createFaultyApi } from '../support/faulty-api.js'
import { parseObject, type KubeObject } from '../../lib/lab/apiserver/object.js'
import { messageOf } from '../../lib/errors.js'
import { apiPort, type ApiCommand, type RelayBehaviour } from './api.js'

const innerPort = apiPort + 1
const { values } = parseArgs({ options: { 'first-version': { type: 'string' } } })
const firstVersion = values['first-version']
const api = createFaultyApi({
  port: innerPort,
  runtime: undefined,
  // The first resource version is the time.
  ...(firstVersion === undefined ? {} : { now: () => Number(firstVersion) }),
})
const sockets = new Set<Socket>()
let behaviour: RelayBehaviour = 'relay'
let cutting: NodeJS.Timeout | undefined

/** Bytes that are not HTTP, and answers that do not fit the question. */
const html = '<html><body>gateway time-out</body></html>'
const garbage = [
  Buffer.from([0x16, 0x03, 0x01, 0x00, 0xff, 0xfe, 0x0a]),
  'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{"kind":"Serv',
  `HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: ${html.length}\r\n\r\n${html}`,
  'HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnull',
  'HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n{"items":42}',
  'HTTP/1.1 999 Nonsense\r\ncontent-length: 0\r\n\r\n',
  'HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n',
  'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n',
]
let answers = 0

const relay = createServer((client) => {
  hold(client)
  if (behaviour === 'silence') return
  if (behaviour === 'garbage') {
    client.once('data', () => client.end(garbage[answers++ % garbage.length] ?? ''))
    return
  }
  const server = hold(connect(innerPort, '127.0.0.1'))
  client.pipe(server).pipe(client)
  client.on('close', () => server.destroy())
  server.on('close', () => client.destroy())
})

function hold(socket: Socket): Socket {
  sockets.add(socket)
  socket.on('error', () => socket.destroy())
  return socket.on('close', () => sockets.delete(socket))
}

async function perform(command: ApiCommand): Promise<void> {
  switch (command.op) {
    case 'listen':
      void api.run(new AbortController().signal)
      await api.listening()
      await new Promise<void>((resolve) => relay.listen(apiPort, '127.0.0.1', resolve))
      break
    case 'put':
      for (const object of command.objects) api.put(parseObject({ ...object }))
      break
    case 'put-unchecked':
      api.registry.store.put(command.collection, command.object as KubeObject)
      break
    case 'remove':
      for (const ref of command.objects) {
        api.remove({ apiVersion: ref.apiVersion, kind: ref.kind, ...ref.metadata })
      }
      break
    case 'relay':
      behave(command.behaviour)
      break
    case 'watches':
      if (command.how === 'cut') api.faults.cutWatches()
      else api.faults.failWatches(410)
      break
    case 'cut-every':
      clearInterval(cutting)
      if (command.ms > 0) cutting = setInterval(() => api.faults.cutWatches(), command.ms)
      break
    case 'compact':
      api.faults.compact()
      break
    case 'restore':
      api.faults.restart()
      break
    case 'fail':
      api.faults.clear()
      if (command.fault !== undefined) api.faults.inject(command.fault)
  }
}

/** Changes the behaviour. A frozen connection stays open and carries no byte any more. */
function behave(next: RelayBehaviour): void {
  behaviour = next === 'frozen' ? 'relay' : next
  for (const socket of sockets) {
    if (next === 'silence' || next === 'frozen') {
      socket.unpipe()
      socket.pause()
    } else socket.destroy()
  }
}

createInterface({ input: process.stdin }).on('line', (line) => {
  perform(JSON.parse(line) as ApiCommand).then(
    () => console.log('ok'),
    (error: unknown) => console.log(`failed: ${messageOf(error).replaceAll('\n', ' ')}`),
  )
})
process.stdin.on('end', () => process.exit(0))
