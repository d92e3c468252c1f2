/** The thread behind cgroup-client.ts. */
import { createSocket, type RemoteInfo, type Socket as UdpSocket } from 'node:dgram'
import { writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import { parentPort, workerData } from 'node:worker_threads'
import type { Answer, Exchange, Question } from './cgroup-client.js'

const patienceMs = 60_000
const sockets = new Map<string, UdpSocket>()
/** The error that a socket got while no question was open. */
const failures = new Map<UdpSocket, string>()

writeFileSync(join(workerData as string, 'cgroup.threads'), '0')
parentPort?.on('message', (question: Question) => {
  void answerTo(question).then((answer) => parentPort?.postMessage(answer))
})

function answerTo(question: Question): Promise<Answer> {
  if (question.do === 'connect') return connectTo(question)
  if (question.do === 'send') return sendTo(question)
  if (question.do === 'exchange') return exchange(question)
  return talkTo(question)
}

function connectTo({ host, port, from }: Question & { do: 'connect' }): Promise<Answer> {
  return new Promise((resolve) => {
    let text = ''
    let peer = ''
    const local = from === undefined ? {} : { localAddress: from }
    const socket = connect({ host, port, ...local }, () => {
      peer = `${socket.remoteAddress ?? ''} ${socket.remotePort ?? 0}`
    })
    socket.setTimeout(patienceMs, () => socket.destroy(errorOf('silence')))
    socket.on('data', (chunk) => (text += chunk.toString()))
    socket.on('error', ({ code = '' }: NodeJS.ErrnoException) => resolve({ error: code }))
    socket.on('close', () => resolve({ name: text, peer }))
  })
}

/** Answers with the number of connections that got all bytes. */
async function exchange(question: Exchange): Promise<Answer> {
  let good = 0
  for (let index = 0; index < question.connections; index++) good += await exchangeOnce(question)
  return { name: String(good) }
}

function exchangeOnce({ host, port, request, answer, end }: Exchange): Promise<number> {
  return new Promise((resolve) => {
    let left = answer
    const socket = connect({ host, port, allowHalfOpen: true }, () =>
      socket.write(Buffer.alloc(request)),
    )
    socket.on('data', ({ length }) => {
      left -= length
      if (left > 0) return
      if (end === 'close') socket.destroy()
      if (end === 'half') socket.end()
      if (end === 'reset') socket.resetAndDestroy()
    })
    socket.on('end', () => socket.end())
    socket.on('error', () => undefined)
    socket.on('close', () => resolve(left === 0 ? 1 : 0))
  })
}

const errorOf = (code: string) => Object.assign(new Error(code), { code })

async function sendTo(question: Question & { do: 'send' }): Promise<Answer> {
  const { type, host, port } = question
  const socket = await socketFor(question.socket, type, question.from)
  return answered(socket, (done) => socket.send('ask', port, host, done))
}

async function talkTo(question: Question & { do: 'talk' }): Promise<Answer> {
  const { type, to } = question
  const socket = await socketFor(question.socket, type)
  if (to) {
    try {
      await new Promise<void>((resolve, reject) => {
        socket.once('error', reject)
        socket.connect(to.port, to.host, () => {
          socket.off('error', reject)
          resolve()
        })
      })
    } catch (error) {
      return { error: String((error as NodeJS.ErrnoException).code) }
    }
  }
  return answered(socket, (done) => socket.send('ask', done))
}

async function socketFor(name: string, type: 'udp4' | 'udp6', from?: string): Promise<UdpSocket> {
  const known = sockets.get(name)
  if (known) return known
  const socket = createSocket(type)
  await new Promise<void>((resolve) => socket.bind(0, from, resolve))
  socket.on('error', ({ code = '' }: NodeJS.ErrnoException) => failures.set(socket, code))
  sockets.set(name, socket)
  return socket
}

type Done = (error: Error | null) => void

function answered(socket: UdpSocket, send: (done: Done) => void): Promise<Answer> {
  const error = failures.get(socket)
  failures.delete(socket)
  if (error !== undefined) return Promise.resolve({ error })
  return new Promise((resolve) => {
    const finish = (answer: Answer) => {
      failures.delete(socket)
      clearTimeout(timer)
      socket.off('message', hear).off('error', fail)
      resolve(answer)
    }
    const hear = (message: Buffer, { address, port }: RemoteInfo) =>
      finish({ name: message.toString(), peer: `${address} ${port}` })
    const fail = (error: NodeJS.ErrnoException) => finish({ error: error.code ?? error.message })
    const timer = setTimeout(() => finish({ error: 'silence' }), patienceMs)
    socket.on('message', hear).on('error', fail)
    send((error) => error && fail(error))
  })
}
