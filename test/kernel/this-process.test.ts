import { spawnSync } from 'node:child_process'
import t from 'tap'

const skip = process.platform === 'linux' ? false : 'needs Linux'
const lib = new URL('../../lib/kernel/', import.meta.url).href
const worker = `
  const { loadLibc } = await import('${lib}sockets/libc.js')
  const { parentPort } = await import('node:worker_threads')
  const libc = await loadLibc()
  // There is always something to read, so this thread is always in the callback.
  libc.watch(0, () => {
    parentPort.postMessage('called')
    for (const end = Date.now() + 50; Date.now() < end; );
  })
  setInterval(() => undefined, 1000)
`
const program = `
  import { Worker } from 'node:worker_threads'
  import { endWithoutThreads } from '${lib}this-process.js'
  await endWithoutThreads()
  const worker = new Worker(${JSON.stringify(worker)}, { eval: true })
  worker.on('message', () => process.exit(3))
`

t.test(
  'a process ends with its exit code while a worker is in a callback of koffi',
  { skip },
  (t) => {
    const argv = ['--input-type=module', '--eval', program]
    const { status, signal, stderr } = spawnSync(process.execPath, argv, { input: '?' })
    t.match({ status, signal }, { status: 3, signal: null }, stderr.toString().slice(0, 500))
    t.end()
  },
)
