import { connect } from 'node:net'

/**
 * Sends bytes as they are. Returns the status of each answer, and all that was received. After
 * `patienceMs` of silence it ends its half of the connection.
 */
export function sendRaw(
  port: number,
  bytes: string,
  patienceMs?: number,
): Promise<{ readonly statuses: readonly number[]; readonly text: string }> {
  return new Promise((resolve) => {
    let text = ''
    const socket = connect(port, '127.0.0.1')
    const done = () => {
      socket.destroy()
      const heads = text.matchAll(/^HTTP\/1\.1 (\d{3}) /gm)
      resolve({ statuses: [...heads].map(([, status]) => Number(status)), text })
    }
    socket.setEncoding('latin1')
    socket.on('data', (chunk: string) => {
      text += chunk
      // Watches and event streams have no end, so their head is enough.
      if (/\r\n\r\n/.test(text) && /transfer-encoding: chunked/i.test(text)) done()
    })
    socket.on('error', done).on('close', done)
    // After a half-close, unlike a reset, Node answers what was wrong with the request so far.
    if (patienceMs !== undefined) socket.setTimeout(patienceMs, () => socket.end())
    socket.write(Buffer.from(bytes, 'latin1'))
  })
}
