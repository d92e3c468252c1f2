import { connect } from 'node:net'

/**
 * Sends bytes as they are. Returns the status of each answer, and all that was received. After
 * `patience` turns of the event loop in silence it ends its half of the connection. A server in this
 * process has had as many turns by then, however slow the machine is.
 */
export function sendRaw(
  port: number,
  bytes: string,
  patience = Infinity,
): Promise<{ readonly statuses: readonly number[]; readonly text: string }> {
  return new Promise((resolve) => {
    let text = ''
    let silentTurns = 0
    const socket = connect(port, '127.0.0.1')
    const turns = setInterval(() => {
      // After a half-close, unlike a reset, Node answers what was wrong with the request so far.
      if (++silentTurns === patience) socket.end()
    }, 1)
    const done = () => {
      clearInterval(turns)
      socket.destroy()
      const heads = text.matchAll(/^HTTP\/1\.1 (\d{3}) /gm)
      resolve({ statuses: [...heads].map(([, status]) => Number(status)), text })
    }
    socket.setEncoding('latin1')
    socket.on('data', (chunk: string) => {
      text += chunk
      silentTurns = 0
      // Watches and event streams have no end, so their head is enough.
      if (/\r\n\r\n/.test(text) && /transfer-encoding: chunked/i.test(text)) done()
    })
    socket.on('error', done).on('close', done)
    socket.write(Buffer.from(bytes, 'latin1'))
  })
}
