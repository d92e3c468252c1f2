import { connect } from 'node:net'

/**
 * Sends bytes as they are; to the status of each answer that came, and all that was received.
 * Requests that never end are given up after `patienceMs`.
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
      // Watches and event streams have no end; their head is enough.
      if (/\r\n\r\n/.test(text) && /transfer-encoding: chunked/i.test(text)) done()
    })
    socket.on('error', done).on('close', done)
    // Half-closed, and not broken: Node then says what was wrong with the request so far.
    if (patienceMs !== undefined) socket.setTimeout(patienceMs, () => socket.end())
    socket.write(Buffer.from(bytes, 'latin1'))
  })
}
