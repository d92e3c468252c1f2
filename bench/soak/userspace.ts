/**
 * Mixed traffic through a userspace data path while endpoints change 20 times a second. Expected:
 * no errors, flat memory, no lost descriptor. A datagram may be lost only if its endpoint was
 * removed while it was on its way. `npm run soak`; SOAK_SECONDS and SOAK_DATAPATH change it. With
 * SOAK_CONNECTIONS=1000000 it makes so many short connections instead, as fast as it can.
 */
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { runCommand } from '../../lib/kernel/command.js'
import {
  lane,
  nodeAddresses,
  runLoad,
  serverAddress,
  startIn,
  stop,
  withLane,
} from '../support/lane.js'
import { openDescriptors, residentMib } from '../support/process-usage.js'
import { ports } from '../support/services.js'

const seconds = Number(process.env['SOAK_SECONDS'] ?? 600)
const dataPath = process.env['SOAK_DATAPATH'] ?? 'splice'
const connections = Number(process.env['SOAK_CONNECTIONS'] ?? 0)
const workers = 2
const sliceSeconds = Math.min(10, Math.max(1, seconds / 10))
/** The descriptors of the idle pipes that all workers of `splice` may keep. */
const keptDescriptors = workers * 32

interface Mix {
  readonly load: string
  readonly port: number
  readonly n: number
}

/**
 * The load is well below saturation, because this test is about errors, not speed. Node accepts one
 * connection in a turn of its event loop, and bulk makes the turns long, so `net` gets less of
 * both.
 */
const isSlow = dataPath === 'net'
const mixes: readonly Mix[] = [
  { load: 'rate', port: ports.short[0], n: isSlow ? 50 : 500 },
  { load: 'connections', port: ports.short[0], n: isSlow ? 1 : 4 },
  { load: 'pingpong', port: ports.echo, n: 16 },
  { load: 'bulk', port: ports.sink, n: isSlow ? 1 : 2 },
  { load: 'bulk', port: ports.source, n: isSlow ? 1 : 2 },
  { load: 'udp', port: ports.udp, n: 16 },
]

const hurry: readonly Mix[] = [{ load: 'connections', port: ports.short[0], n: 64 }]

const total = { connections: 0, errors: 0, gigabytes: 0, datagrams: 0, late: 0, lost: 0 }

/** One kind of traffic, slice by slice: each slice opens its connections anew. */
async function keepGoing(mix: Mix, isOver: () => boolean): Promise<void> {
  while (!isOver()) {
    try {
      const address = nodeAddresses.splice
      const report = await runLoad([mix.load, address, mix.port, sliceSeconds, mix.n])
      if (mix.load === 'rate' || mix.load === 'connections') {
        total.connections += (report['perSecond'] ?? 0) * sliceSeconds
      }
      total.errors += report['failed'] ?? 0
      total.datagrams += report['sent'] ?? 0
      total.late += report['late'] ?? 0
      total.lost += report['lost'] ?? 0
      total.gigabytes += ((report['gigabitsPerSecond'] ?? 0) * sliceSeconds) / 8
    } catch (error) {
      total.errors++
      console.error(error)
    }
  }
}

/** Datagrams by the reason why UDP clients ended; the proxy prints them every second. */
type UdpEnds = Readonly<Record<string, { readonly asked: number; readonly answered: number }>>

/** The lost datagrams by cause, from the counts of the clients and of the proxy. */
function lossesByCause(udpEnds: UdpEnds) {
  const ends = Object.entries(udpEnds)
  const sum = (field: 'asked' | 'answered') => ends.reduce((all, [, end]) => all + end[field], 0)
  const received = total.datagrams - total.lost
  const causes: Record<string, number> = {
    'before the proxy': total.datagrams - sum('asked'),
    'after the proxy': sum('answered') - received,
  }
  for (const [end, { asked, answered }] of ends) causes[`client ended: ${end}`] = asked - answered
  const { 'client ended: endpoint removed': removed = 0, ...rest } = causes
  return { causes, ours: Object.values(rest).reduce((all, count) => all + count, 0), removed }
}

/** Datagrams that sockets had no room for, by namespace. */
async function kernelDrops(): Promise<Readonly<Record<string, number>>> {
  const drops: Record<string, number> = {}
  for (const [place, name] of Object.entries(lane)) {
    const argv = ['netns', 'exec', name, 'cat', '/proc/net/snmp']
    const { stdout } = await runCommand('ip', argv)
    const [names = [], values = []] = stdout
      .split('\n')
      .filter((line) => line.startsWith('Udp:'))
      .map((line) => line.split(' '))
    for (const counter of ['RcvbufErrors', 'SndbufErrors', 'MemErrors']) {
      drops[`${place} ${counter}`] = Number(values[names.indexOf(counter)] ?? 0)
    }
  }
  return drops
}

function differences(
  before: Readonly<Record<string, number>>,
  after: Readonly<Record<string, number>>,
): Readonly<Record<string, number>> {
  return Object.fromEntries(
    Object.entries(after)
      .map(([name, count]) => [name, count - (before[name] ?? 0)] as const)
      .filter(([, count]) => count !== 0),
  )
}

await withLane(async () => {
  const script = (name: string) => new URL(`../support/${name}.js`, import.meta.url).pathname
  const node = process.execPath
  const server = await startIn(lane.servers, [node, script('load-server'), serverAddress])
  const argv = [node, script('proxy-under-test'), dataPath, String(workers)]
  const changes = [nodeAddresses.splice, serverAddress, '20', '0', 'udp-ends']
  const proxy = await startIn(lane.node, [...argv, ...changes])
  let udpEnds: UdpEnds = {}
  createInterface({ input: proxy.stdout ?? process.stdin }).on('line', (line) => {
    udpEnds = JSON.parse(line) as UdpEnds
  })
  const dropsBefore = await kernelDrops()
  const pid = proxy.pid ?? 0
  try {
    await sleep(1000)
    const atFirst = openDescriptors(pid)
    const until = performance.now() + seconds * 1000
    const isOver = () =>
      connections > 0 ? total.connections >= connections : performance.now() >= until
    const chosen = connections > 0 ? hurry : mixes
    const traffic = Promise.all(chosen.map((mix) => keepGoing(mix, isOver)))
    const memory: number[] = []
    while (!isOver()) {
      await sleep(sliceSeconds * 1000)
      memory.push(residentMib(pid))
      const now = { MiB: Math.round(residentMib(pid)), descriptors: openDescriptors(pid) }
      console.log(JSON.stringify({ ...now, ...total }))
    }
    await traffic
    // UDP clients are forgotten after 10 s of silence, and counted up to 2 s later.
    await sleep(14_000)
    const left = openDescriptors(pid) - atFirst
    // The first slices warm the process up.
    const half = memory.slice(Math.floor(memory.length / 2))
    const growth = (half.at(-1) ?? 0) - (half[0] ?? 0)
    const losses = lossesByCause(udpEnds)
    const isGood = total.errors === 0 && losses.ours === 0 && left <= keptDescriptors && growth < 20
    console.log(
      `${dataPath}: ${Math.round(total.connections)} connections, ${total.gigabytes.toFixed(0)} GB, ` +
        `${total.errors} errors, ${left} descriptors more than at first ` +
        `(up to ${keptDescriptors} are kept on purpose), ${growth.toFixed(1)} MiB growth in the second half`,
    )
    console.log(
      `${total.datagrams} datagrams, ${total.late} answers late, ${total.lost} lost: ` +
        `${JSON.stringify(losses.causes)}; dropped by sockets: ` +
        JSON.stringify(differences(dropsBefore, await kernelDrops())),
    )
    if (!isGood) process.exitCode = 1
  } finally {
    await stop(proxy)
    await stop(server)
  }
})
