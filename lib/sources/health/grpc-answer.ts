import { connect, type IncomingHttpHeaders } from 'node:http2'
import { good, type Conversation, type Outcome } from './outcome.js'

/**
 * A message that is not compressed and has no bytes: an empty HealthCheckRequest asks for the
 * server as a whole.
 */
const emptyMessage = Buffer.from([0, 0, 0, 0, 0])
/** No answer is longer: it has the head of a message and one field with a small number. */
const longestAnswer = 64

/** Asks `grpc.health.v1.Health/Check`, in clear text. */
export function askGrpcHealth(host: string): Conversation {
  return (socket, told) => {
    const failed = () => told({ kind: 'bad', reason: 'answers, but not in gRPC' })
    const session = connect(`http://${host}`, {
      createConnection: () => socket,
      settings: { enablePush: false, maxHeaderListSize: 4096 },
      // In MB; an answer needs a few hundred bytes.
      maxSessionMemory: 1,
    })
    socket.once('close', () => session.destroy())
    session.on('error', failed)
    const stream = session.request({
      ':method': 'POST',
      ':path': '/grpc.health.v1.Health/Check',
      'content-type': 'application/grpc',
      te: 'trailers',
    })
    let answer = Buffer.alloc(0)
    const refused = (headers: IncomingHttpHeaders) => {
      const status = headers['grpc-status']
      if (status === undefined || status === '0') return
      told({ kind: 'bad', reason: `answers with gRPC status ${String(status).slice(0, 3)}` })
    }
    stream.on('error', failed)
    stream.on('response', (headers) => {
      if (headers[':status'] !== 200) failed()
      else refused(headers)
    })
    stream.on('trailers', refused)
    stream.on('data', (bytes: Buffer) => {
      answer = Buffer.concat([answer, bytes.subarray(0, longestAnswer)])
      const outcome = grpcAnswer(answer)
      if (outcome) told(outcome)
    })
    stream.on('end', failed)
    stream.end(emptyMessage)
  }
}

const states = ['UNKNOWN', 'SERVING', 'NOT_SERVING', 'SERVICE_UNKNOWN']

/** Reads a HealthCheckResponse; undefined while bytes are missing. */
export function grpcAnswer(bytes: Buffer): Outcome | undefined {
  if (bytes.length < emptyMessage.length) return undefined
  const length = bytes.readUInt32BE(1)
  if (bytes[0] !== 0 || length > longestAnswer) {
    return { kind: 'bad', reason: 'answers with a message that is no HealthCheckResponse' }
  }
  if (bytes.length < emptyMessage.length + length) return undefined
  // A message without the field means its default, 0. Field 1 is a number: tag 8, then its value.
  const state = length === 0 ? 0 : bytes[5] === 8 ? bytes[6] : undefined
  if (state === 1) return good
  return { kind: 'bad', reason: `says ${states[state ?? -1] ?? 'something else than SERVING'}` }
}
