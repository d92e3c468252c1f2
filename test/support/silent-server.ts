import { once } from 'node:events'
import { connect } from 'node:net'
import { Worker } from 'node:worker_threads'
import type { Test } from 'tap'
import { untilTrue } from './until.js'

/** A port of 127.0.0.1 whose queue is full, so that its kernel does not answer new connections. */
export async function openSilentPort(t: Test): Promise<number> {
  const host = '127.0.0.1'
  const worker = new Worker(
    `const { createServer } = require('node:net')
     const { parentPort } = require('node:worker_threads')
     const server = createServer().listen({ port: 0, host: '${host}', backlog: 1 }, () => {
       parentPort.postMessage(server.address().port)
       // This thread stops here and accepts no connection.
       Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)
     })`,
    { eval: true, execArgv: [] },
  )
  const [port] = (await once(worker, 'message')) as [number]
  const fillers = [1, 2, 3].map(() => connect(port, host).on('error', () => undefined))
  t.teardown(async () => {
    for (const filler of fillers) filler.destroy()
    await worker.terminate()
  })
  // The kernel queues one more connection than the backlog says.
  await untilTrue(() => fillers.filter(({ connecting }) => !connecting).length === 2)
  return port
}
