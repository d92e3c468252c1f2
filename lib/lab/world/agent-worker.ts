/** A thread of agents: it serves at many places, or makes connections at one. */
import { writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { parentPort, workerData } from 'node:worker_threads'
import { Turns } from '../../async.js'
import { messageOf } from '../../errors.js'
import {
  mostAnswered,
  usualPatienceMs,
  type AgentPlace,
  type AgentAnswer,
  type AgentNews,
  type Answered,
  type FlowRequest,
  type FlowResult,
  type NumberedCommand,
  type AgentCommand,
  type ServerCommand,
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

const kept = new Map<string, Conversation>()
/** Answered requests by the number of the listener, until they are reported. */
let answered = new Map<number, Answered[]>()
let serving: Serving[] = []

interface Serving {
  readonly namespace: string | undefined
  readonly name: string
  readonly servers: BackendServers
}

/** A socket belongs to the namespace where the thread is when it opens, so that must not change. */
const turns = new Turns()
let here: AgentPlace = { namespace: undefined, cgroup: undefined }
/** Below node ports and the kernel's own choices, so that no server listens there. */
const clientPorts = { first: 11_000, last: 29_999 }
let lastPort = clientPorts.first

async function perform(command: AgentCommand): Promise<readonly FlowResult[]> {
  switch (command.op) {
    case 'write':
      await at(command.place, () => {
        for (const [path, value] of Object.entries(command.values)) writeFileSync(path, value)
      })
      return []
    case 'serve': {
      const { place, request } = command
      await at(place, async () => {
        const servers = await serve(command)
        serving.push({ namespace: place.namespace, name: request.name, servers })
      })
      return []
    }
    case 'stop-serving':
      await turns.take(() => stopServing(command.place.namespace, command.name))
      // The owner of the agent removes its listener next, so all news must be told now.
      tellNews()
      return []
    case 'flow':
      return flow(command.request)
    case 'send': {
      const conversation = kept.get(command.id)
      if (!conversation) throw new Error(`send on ${command.id}: no connection of that name`)
      return [await conversation.ask({ timeoutMs: command.timeoutMs })]
    }
    case 'forget':
      kept.get(command.id)?.close()
      kept.delete(command.id)
      return []
    case 'stray': {
      // Its socket opens at once, so only that needs a turn.
      const { sent } = await at(command.place, () => ({ sent: sendStraySegment(command.request) }))
      await sent
      return []
    }
  }
}

function at<T>(place: AgentPlace, act: () => T | Promise<T>): Promise<T> {
  return turns.take(async () => {
    moveTo(place)
    return act()
  })
}

/**
 * A thread cannot go back to the network of its process. So an agent without a namespace has a thread
 * of its own.
 */
function moveTo({ namespace, cgroup }: AgentPlace): void {
  if (namespace !== undefined && namespace !== here.namespace) joinNetworkNamespace(namespace)
  if (cgroup !== undefined && here.cgroup === undefined) joinCgroup(cgroup)
  if (cgroup === undefined && here.cgroup !== undefined) joinCgroup(dirname(here.cgroup))
  here = { namespace, cgroup }
}

/** Zero means the thread that writes. */
function joinCgroup(folder: string): void {
  writeFileSync(join(folder, 'cgroup.threads'), '0')
}

type ServeCommand = Extract<ServerCommand, { readonly op: 'serve' }>

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
async function stopServing(namespace: string | undefined, name: string | undefined): Promise<void> {
  const isMeant = (each: Serving) =>
    each.namespace === namespace && (name === undefined || each.name === name)
  const ending = serving.filter(isMeant)
  serving = serving.filter((each) => !ending.includes(each))
  await Promise.all(ending.map(({ servers }) => servers.close()))
}

async function flow(request: FlowRequest): Promise<readonly FlowResult[]> {
  const results: FlowResult[] = []
  let remaining = request.count ?? 1
  const lane = async () => {
    while (remaining-- > 0) results.push(await converse(request))
  }
  await Promise.all(Array.from({ length: Math.min(remaining, maximumParallel) }, lane))
  return results
}

async function converse(request: FlowRequest): Promise<FlowResult> {
  const isTcp = request.protocol === 'TCP'
  const conversation = openConversation(isTcp ? { fromPort: freshPort(), ...request } : request)
  const result = await conversation.ask({
    timeoutMs: request.timeoutMs ?? usualPatienceMs,
    payloadBytes: request.payloadBytes,
    halfClose: request.halfClose,
  })
  if (request.keepAs === undefined) conversation.close()
  else {
    kept.get(request.keepAs)?.close()
    kept.set(request.keepAs, conversation)
  }
  return result
}

/**
 * The port that was used the longest time ago. The kernel itself gives one port to connections to
 * several addresses at once. IPVS then mixes up the answers if one real server is behind two of
 * them, because it finds the connection of an answer by client and real server only.
 */
function freshPort(): number {
  lastPort = lastPort < clientPorts.last ? lastPort + 1 : clientPorts.first
  return lastPort
}

if (parentPort) {
  const port = parentPort
  moveTo(workerData as AgentPlace)
  port.on('message', ({ number, command }: NumberedCommand) => {
    perform(command).then(
      (results) => port.postMessage({ number, results } satisfies AgentAnswer),
      (error: unknown) =>
        port.postMessage({ number, error: messageOf(error) } satisfies AgentAnswer),
    )
  })
}
