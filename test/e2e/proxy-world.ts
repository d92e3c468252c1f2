import { once } from 'node:events'
import { mkdtemp, rename, rm, writeFile } from 'node:fs/promises'
import { request, type IncomingMessage } from 'node:http'
import { Socket } from 'node:net'
import { join } from 'node:path'
import { tmpdir } from 'node:os'
import { text } from 'node:stream/consumers'
import type { Test } from 'tap'
import { stringify } from 'yaml'
import { insideNamespace } from '../../lib/kernel/network-namespaces.js'
import { NativeSocket } from '../../lib/lab/world/native-socket.js'
import { addressOf, type Place } from '../../lib/lab/world/topology.js'
import { createWorld, type World, type WorldOptions } from '../../lib/lab/world/world.js'
import { withoutBrackets } from '../../lib/state/ip.js'
import type { RunningProxy } from '../../lib/lab/playground/proxy-process.js'
import { endpoint, rawService, rawSlice } from '../state/objects.js'
import { patienceMs } from '../support/until.js'

/** The tests of the whole program share this: a world, a folder, one Service, and waiting. */

export const skip = process.getuid?.() === 0 ? false : 'network namespaces need root'
export const clusterIp = '10.96.0.10'

export interface ProxyWorld {
  readonly world: World
  readonly folder: string
}

type Act = (stage: ProxyWorld) => Promise<void>

export async function withProxyWorld(
  name: string,
  act: Act,
  options: Pick<WorldOptions, 'withCgroup'> = {},
): Promise<void> {
  await withFolder(async (folder) => {
    const world = await createWorld({ name, ...options })
    try {
      await act({ world, folder })
    } finally {
      await world.close()
    }
  })
}

async function withFolder(act: (folder: string) => Promise<void>): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), 'kube-proxy-e2e-'))
  try {
    await act(folder)
  } finally {
    await rm(folder, { recursive: true })
  }
}

/**
 * Returns what acts in one world, once after the other, each time with a folder of its own. Each act
 * ends its proxies, so that the node is as before. The world begins with the first act.
 */
export function oneProxyWorld(t: Test, name: string): (act: Act) => Promise<void> {
  let begun: Promise<World> | undefined
  t.teardown(async () => (await begun)?.close())
  return (act) =>
    withFolder(async (folder) => {
      const world = await (begun ??= createWorld({ name }))
      try {
        await act({ world, folder })
      } finally {
        // Some modes leave their rules, and the next proxy would seem to serve by them.
        await world.exec('node', ['nft', 'flush', 'ruleset'])
      }
    })
}

/** Writes by a rename, so that no proxy reads half a file. */
export async function write(folder: string, file: string, ...objects: object[]): Promise<void> {
  const hidden = join(folder, `.${file}`)
  await writeFile(hidden, objects.map((object) => stringify(object)).join('---\n'))
  await rename(hidden, join(folder, file))
}

export const service = rawService({ spec: { clusterIP: clusterIp, clusterIPs: [clusterIp] } })
export const sliceOf = (...places: Place[]) =>
  rawSlice({
    endpoints: places.map((place) => endpoint(addressOf(place, 'IPv4'), { node: 'node-1' })),
  })

/** The time for an answer that must come. A busy machine is only slow. */
export const patient = patienceMs

/** Who answers at the Service. A wait asks again soon, so it needs no patience. */
export async function ask(world: World, timeoutMs = 500): Promise<string> {
  const flow = { protocol: 'TCP', host: clusterIp, port: 80, timeoutMs } as const
  const [result] = await world.agent('client-pod').flow(flow)
  return result?.backend ?? result?.outcome ?? 'nothing'
}

/** Asks a URL from a place, by this process: its socket is opened there. */
export async function get(
  world: World,
  url: string,
  from: Place = 'node',
): Promise<{ status: number; body: string }> {
  const { hostname, port } = new URL(url)
  const host = withoutBrackets(hostname)
  const { descriptor } = insideNamespace(world.namespaces[from], () => {
    return new NativeSocket(host, 'stream', 'tcp')
  })
  const socket = new Socket({ fd: descriptor })
  const asked = request(url, { createConnection: () => socket.connect(Number(port), host) })
  const [answer] = (await once(asked.end(), 'response')) as [IncomingMessage]
  return { status: answer.statusCode ?? 0, body: await text(answer) }
}

/** Stops the daemon after `act`. A failure contains all output of the daemon. */
export async function stopping(proxy: RunningProxy, act: () => Promise<void>): Promise<void> {
  try {
    await act()
  } catch (error) {
    throw new Error(`${String(error)}\n${proxy.output()}`)
  } finally {
    await proxy.stop()
  }
}

export const nftables = ['--proxy-mode', 'nftables', '--iptables-min-sync-period', '0s']
