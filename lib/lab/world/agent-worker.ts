/** A thread of agents: it serves and makes connections in many namespaces, and is in one cgroup. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { parentPort, workerData } from 'node:worker_threads'
import { Turns } from '../../async.js'
import { messageOf } from '../../errors.js'
import {
  mostAnswered,
  usualPatienceMs,
  type AgentAnswer,
  type AgentNews,
  type Answered,
  type FlowRequest,
  type FlowResult,
  type Namespace,
  type NumberedCommand,
  type AgentCommand,
} from './agent-protocol.js'
import { startBackendServers, type BackendServers } from './backend-servers.js'
import { openConversation, type Conversation } from './client-flows.js'
import { joinNetworkNamespace } from './namespaces.js'
import { sendStraySegment } from './stray-segment.js'

/** With more at once, a slow machine seems to drop packets. */
const maximumParallel = 12

/** Requests within this time are reported together, so that many requests cause few messages. */
const newsMs = 20

const mostTries = 100
const tryAgainMs = 50

/** Conversations by namespace and name. */
const kept = new Map<string, Conversation>()
/** Answered requests by the number of the listener, until they are reported. */
let answered = new Map<number, Answered[]>()
let serving: Serving[] = []

interface Serving {
  readonly namespace: Namespace
  readonly name: string
  readonly servers: BackendServers
}

/** A socket belongs to the namespace where the thread is when it opens, so that must not change. */
const turns = new Turns()
let here: Namespace
/** Below node ports and the kernel's own choices, so that no server listens there. */
const clientPorts = { first: 11_000, last: 29_999 }
const lastPorts = new Map<Namespace, number>()

async function perform(command: AgentCommand): Promise<readonly FlowResult[]> {
  const { namespace } = command
  switch (command.op) {
    case 'write':
      await at(namespace, () => {
        for (const [path, value] of Object.entries(command.values)) writeFileSync(path, value)
      })
      return []
    case 'serve': {
      await at(namespace, async () => {
        const servers = await serve(command)
        serving.push({ namespace, name: command.request.name, servers })
      })
      return []
    }
    case 'stop-serving':
      await turns.take(() => stopServing(namespace, command.name))
      // The owner of the agent removes its listener next, so all news must be told now.
      tellNews()
      return []
    case 'flow':
      return flow(namespace, command.request)
    case 'send': {
      const conversation = kept.get(keyOf(namespace, command.id))
      if (!conversation) throw new Error(`send on ${command.id}: no connection of that name`)
      return [await conversation.ask({ timeoutMs: command.timeoutMs })]
    }
    case 'forget': {
      const key = keyOf(namespace, command.id)
      kept.get(key)?.close()
      kept.delete(key)
      return []
    }
    case 'stray': {
      // Its socket opens at once, so only that needs a turn.
      const { sent } = await at(namespace, () => ({ sent: sendStraySegment(command.request) }))
      await sent
      return []
    }
  }
}

/**
 * A thread cannot go back to the network of its process. So an agent without a namespace has a thread
 * of its own.
 */
function at<T>(namespace: Namespace, act: () => T | Promise<T>): Promise<T> {
  return turns.take(async () => {
    if (namespace !== undefined && namespace !== here) joinNetworkNamespace(namespace)
    here = namespace
    return act()
  })
}

const keyOf = (namespace: Namespace, id: string) => `${namespace ?? ''} ${id}`

type ServeCommand = Extract<AgentCommand, { readonly op: 'serve' }>

/**
 * Tries again while a port is taken. A program that this process has just started holds all sockets
 * of this process until it executes, also those that were closed a moment ago.
 */
async function serve({ request, listener }: ServeCommand): Promise<BackendServers> {
  for (let tries = 1; ; tries++) {
    try {
      return await startBackendServers(request, (each) => {
        if (listener !== undefined) note(listener, each)
      })
    } catch (error) {
      if (tries === mostTries || (error as NodeJS.ErrnoException).code !== 'EADDRINUSE') throw error
      await delay(tryAgainMs)
    }
  }
}

function note(listener: number, each: Answered): void {
  if (answered.size === 0) setTimeout(tellNews, newsMs)
  const known = answered.get(listener) ?? []
  answered.set(listener, known)
  known.push(each)
  if (known.length > mostAnswered) known.shift()
}

function tellNews(): void {
  if (answered.size === 0) return
  parentPort?.postMessage({ answered } satisfies AgentNews)
  answered = new Map()
}

/** Ends the servers of this name at a place, or all there without a name. */
async function stopServing(namespace: Namespace, name: string | undefined): Promise<void> {
  const isMeant = (each: Serving) =>
    each.namespace === namespace && (name === undefined || each.name === name)
  const ending = serving.filter(isMeant)
  serving = serving.filter((each) => !ending.includes(each))
  await Promise.all(ending.map(({ servers }) => servers.close()))
}

async function flow(namespace: Namespace, request: FlowRequest): Promise<readonly FlowResult[]> {
  const results: FlowResult[] = []
  let remaining = request.count ?? 1
  const lane = async () => {
    while (remaining-- > 0) results.push(await converse(namespace, request))
  }
  await Promise.all(Array.from({ length: Math.min(remaining, maximumParallel) }, lane))
  return results
}

async function converse(namespace: Namespace, request: FlowRequest): Promise<FlowResult> {
  const isTcp = request.protocol === 'TCP'
  const conversation = await openConversation(
    isTcp ? { fromPort: freshPort(namespace), ...request } : request,
    (open) => at(namespace, open),
  )
  const result = await conversation.ask({
    timeoutMs: request.timeoutMs ?? usualPatienceMs,
    payloadBytes: request.payloadBytes,
    halfClose: request.halfClose,
  })
  if (request.keepAs === undefined) conversation.close()
  else {
    const key = keyOf(namespace, request.keepAs)
    kept.get(key)?.close()
    kept.set(key, conversation)
  }
  return result
}

/**
 * The port that was used the longest time ago. The kernel itself gives one port to connections to
 * several addresses at once. IPVS then mixes up the answers if one real server is behind two of
 * them, because it finds the connection of an answer by client and real server only.
 */
function freshPort(namespace: Namespace): number {
  const last = lastPorts.get(namespace) ?? clientPorts.first
  const port = last < clientPorts.last ? last + 1 : clientPorts.first
  lastPorts.set(namespace, port)
  return port
}

if (parentPort) {
  const port = parentPort
  const cgroup = workerData as string | undefined
  // Zero means the thread that writes.
  if (cgroup !== undefined) writeFileSync(join(cgroup, 'cgroup.threads'), '0')
  port.on('message', ({ number, command }: NumberedCommand) => {
    perform(command).then(
      (results) => port.postMessage({ number, results } satisfies AgentAnswer),
      (error: unknown) =>
        port.postMessage({ number, error: messageOf(error) } satisfies AgentAnswer),
    )
  })
}
