/** Rules are written and removed in a network namespace. Programs of the node are the clients. */
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs'
import { connect, createServer } from 'node:net'
import { join } from 'node:path'
import { setImmediate, setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { configWith } from '../../../lib/config/load.js'
import { KernelError } from '../../../lib/errors.js'
import { definition } from '../../../lib/modes/userspace/index.js'
import { takeoverPath } from '../../../lib/modes/userspace/takeover/protocol.js'
import { successionPath } from '../../../lib/modes/userspace/takeover/succession.js'
import { UserspaceMode } from '../../../lib/modes/userspace/userspace-mode.js'
import { runProgram } from '../../../lib/kernel/iptables/command.js'
import { enterPrivateNetns } from '../../support/private-netns.js'
import { service, states, testSettings } from '../../support/states.js'
import type { IpFamily } from '../../../lib/state/ip.js'
import type { Run } from '../../../lib/kernel/iptables.js'
import type { ModeContext } from '../../../lib/modes/mode.js'
import type { UserspaceSettings } from '../../../lib/modes/userspace/settings.js'
import type { Test } from 'tap'
import { patienceMs, until } from '../../support/until.js'
import { execSync } from '../../support/run-sync.js'

const skip = enterPrivateNetns() ?? false
const nodeIp = '192.0.2.1'
const otherIp = '192.0.2.2'
const clusterIp = '10.96.0.10'

if (skip === false) {
  const ip = (...args: string[]) => execSync('ip', args)
  ip('link', 'set', 'lo', 'up')
  for (const address of [nodeIp, otherIp]) ip('address', 'add', `${address}/32`, 'dev', 'lo')
  ip('route', 'add', 'default', 'dev', 'lo')
}

/** The rules without counters and the date. */
const rules = () =>
  execSync('iptables-save')
    .replaceAll(/^#.*\n/gm, '')
    .replaceAll(/\[\d+:\d+\]/g, '')

/** An endpoint that sends its name. */
async function openEndpoint(t: Test, name: string) {
  const server = createServer((socket) => {
    socket.on('error', () => undefined)
    socket.end(name)
  }).listen(0, otherIp)
  await once(server, 'listening')
  t.teardown(() => void server.close())
  const address = server.address()
  return { ip: otherIp, port: typeof address === 'object' && address ? address.port : 0 }
}

/** Where no answer may come, the wait is short. */
const silenceMs = 3000

/** Connects as a program of this node, and returns the answer or the error code. */
async function ask(host: string, port = 80, timeout = patienceMs): Promise<string> {
  const socket = connect({ host, port, timeout })
  socket.on('timeout', () => socket.destroy(new Error('no answer')))
  let heard = ''
  socket.on('data', (chunk) => (heard += String(chunk)))
  return new Promise((resolve) => {
    socket.on('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message))
    socket.on('close', () => resolve(heard))
  })
}

const quiet = () => undefined
const quietLog = { debug: quiet, info: quiet, warn: quiet, error: quiet }
const quietMeter = { count: quiet, gauge: quiet, observe: quiet, forget: quiet }

/** The mode, with its restores, metrics and logs for the test to see. */
async function openMode(
  t: Test,
  run: Run = runProgram,
  own: Partial<UserspaceSettings> = {},
  families: readonly IpFamily[] = ['IPv4'],
) {
  const gauges = new Map<string, number>()
  const warnings: string[] = []
  const context: ModeContext = {
    log: { ...quietLog, warn: (_fields, text) => void warnings.push(text) },
    resync: quiet,
    meter: { ...quietMeter, gauge: (name, _labels, value) => void gauges.set(name, value) },
  }
  const restores: string[] = []
  const spying: Run = (file, args, options) => {
    if (file.endsWith('-restore') && !args.includes('--test')) {
      restores.push(options?.stdin ?? '')
    }
    return run(file, args, options)
  }
  const mode = await UserspaceMode.create({ ...testSettings, ...own }, families, context, {
    run: spying,
  })
  let isClosed = false
  const close = async () => {
    if (!isClosed) await mode.close()
    isClosed = true
  }
  t.teardown(close)
  const cluster = states('IPv4', {}, ['127.0.0.1', nodeIp, otherIp])
  return {
    mode,
    cluster,
    restores,
    warnings,
    close,
    listeners: () => gauges.get('userspace_listeners'),
    async sync() {
      return (await mode.apply(mode.plan(cluster.take()))).failed
    },
  }
}

t.test('at the end, both families wait for a lock at the same time', { skip }, async (t) => {
  let isEnding = false
  const begun = new Set<string>()
  const run: Run = async (file, args, options) => {
    if (isEnding && file.endsWith('-restore')) {
      begun.add(file)
      await until('the other family', () => begun.size === 2)
    }
    return runProgram(file, args, options)
  }
  const opened = await openMode(t, run, {}, ['IPv4', 'IPv6'])
  t.same(await opened.sync(), [])
  await opened.mode.apply(opened.mode.plan(states('IPv6').take()))
  isEnding = true
  await opened.close()
  t.equal(begun.size, 2)
})

t.test('iptables.masqueradeAll changes while the mode runs', { skip }, async (t) => {
  const { mode, cluster } = await openMode(t)
  cluster.put(service({ clusterIp, endpoints: [{ ip: otherIp, port: 1 }] }))
  const state = cluster.take()
  const hidesAll = () =>
    [...mode.plan(state).services.values()].map(
      ({ listeners }) => listeners[0]?.spec.source?.masqueradesAll,
    )
  t.same(hidesAll(), [false])
  const changed = configWith({ 'iptables.masqueradeAll': true })
  t.equal(mode.reconfigure(changed), true, 'it asks for a sync of everything')
  t.same(hidesAll(), [true])
  t.equal(mode.reconfigure(changed), false)
})

t.test('US05: a new process keeps the old rules until it can replace them', { skip }, async (t) => {
  const web = service({ clusterIp, endpoints: [await openEndpoint(t, 'web')] })
  const first = await openMode(t)
  first.cluster.put(web)
  t.same(await first.sync(), [])
  const before = rules()
  t.equal(await ask(clusterIp), 'web')

  const second = await openMode(t)
  t.equal(rules(), before, 'the original flushed its chains here')
  second.cluster.put(web)
  const heard: string[] = []
  let isDone = false
  const asking = (async () => {
    while (!isDone) {
      heard.push(await ask(clusterIp))
      await setImmediate()
    }
  })()
  const tried = second.restores.length
  t.same(await second.sync(), [])
  isDone = true
  await asking
  t.equal(second.restores.length - tried, 1, 'one transaction')
  t.not(rules(), before, 'other ports')
  t.same(new Set(heard), new Set(['web']), `${heard.length} clients meanwhile`)
  await first.close()
})

t.test(
  'US12, US18: a portal on an address of the node is served from the first sync, and not bound',
  { skip },
  async (t) => {
    const mode = await openMode(t)
    const endpoints = [await openEndpoint(t, 'web')]
    mode.cluster.put(service({ clusterIp, externalIps: [nodeIp, otherIp], endpoints }))
    t.same(await mode.sync(), [])
    for (const host of [clusterIp, nodeIp, otherIp]) t.equal(await ask(host), 'web', host)
    const own = createServer((socket) => socket.end('not the Service')).listen(80, otherIp)
    await once(own, 'listening')
    t.teardown(() => void own.close())
    t.equal(await ask(otherIp), 'web', 'who has the port all the same is not asked')
    t.equal(await ask(otherIp, endpoints[0]?.port), 'web', 'other ports of it are nothing special')
    await mode.close()
    t.equal(await ask(otherIp), 'not the Service')
  },
)

t.test('US72: a listener stays while its rules cannot be removed', { skip }, async (t) => {
  let isLocked = false
  const mode = await openMode(t, (file, args, options) =>
    isLocked && file.endsWith('-restore')
      ? Promise.resolve({
          code: 4,
          stdout: '',
          stderr: 'Another app is holding the xtables lock',
        })
      : runProgram(file, args, options),
  )
  const web = service({ clusterIp, endpoints: [await openEndpoint(t, 'web')] })
  mode.cluster.put(web)
  await mode.sync()
  t.equal(mode.listeners(), 1)
  isLocked = true
  mode.cluster.remove(web)
  await t.rejects(mode.sync(), KernelError)
  t.equal(mode.listeners(), 1)
  t.equal(await ask(clusterIp), 'web', 'the rule still leads to somebody')
  const brief = service({ name: 'brief', clusterIp: '10.96.0.11' })
  mode.cluster.put(brief)
  await t.rejects(mode.sync(), KernelError)
  t.equal(mode.listeners(), 2)
  mode.cluster.remove(brief)
  isLocked = false
  t.same(await mode.sync(), [])
  t.equal(mode.listeners(), 0, 'also those of a Service whose rules were never written')
  t.notMatch(rules(), clusterIp)
})

for (const datapath of ['net', 'splice'] as const) {
  t.test(
    `US32, US34: more Services than proxy ports, data path ${datapath}`,
    { skip },
    async (t) => {
      // The kernel gives these ports to nobody else.
      const portRange = { from: 26_000, to: 26_001 }
      const mode = await openMode(t, runProgram, { portRange, datapath })
      const taken = createServer().listen(26_000, '0.0.0.0')
      t.teardown(() => void taken.close())
      await once(taken, 'listening')
      const services = ['a', 'b', 'c'].map(async (name, index) =>
        service({
          name,
          clusterIp: `10.96.1.${index}`,
          endpoints: [await openEndpoint(t, name)],
        }),
      )
      const [a, b, c] = await Promise.all(services)
      if (!a || !b || !c) throw new Error('no services')
      mode.cluster.put(a, b, c)
      const failed = await mode.sync()
      t.match(failed, [{ event: 'ProxyPortsExhausted' }, { event: 'ProxyPortsExhausted' }])
      const names = async () => Promise.all([a, b, c].map(({ clusterIp: ip }) => ask(ip, 80, 5000)))
      t.equal((await names()).filter((name) => /^[abc]$/.test(name)).length, 1, 'one has a port')
      taken.close()
      await once(taken, 'close')
      t.match(await mode.sync(), [{ event: 'ProxyPortsExhausted' }], 'tried again, unasked')
      const heard = await names()
      t.equal(heard.filter((name) => /^[abc]$/.test(name)).length, 2)
      const [served] = [a, b, c].filter((_, index) => /^[abc]$/.test(heard[index] ?? ''))
      if (served) mode.cluster.remove(served)
      t.same(await mode.sync(), [], 'the same sync gives its port to the one that waited')
      t.equal((await names()).filter((name) => /^[abc]$/.test(name)).length, 2)
    },
  )
}

/** A server that sends back what it gets. */
async function openEcho(t: Test) {
  const server = createServer((socket) => void socket.on('error', () => undefined).pipe(socket))
  server.listen(0, otherIp)
  await once(server, 'listening')
  t.teardown(() => void server.close())
  const address = server.address()
  return { ip: otherIp, port: typeof address === 'object' && address ? address.port : 0 }
}

for (const datapath of ['net', 'splice'] as const) {
  t.test(
    `connections drain if no other rule needs connection tracking, data path ${datapath}`,
    { skip },
    async (t) => {
      const echo = await openEcho(t)
      const begin = async (drainTimeoutMs: number) => {
        const mode = await openMode(t, runProgram, { datapath, drainTimeoutMs })
        mode.cluster.put(service({ clusterIp, endpoints: [echo] }))
        t.same(await mode.sync(), [])
        const client = connect({ host: clusterIp, port: 80, timeout: patienceMs })
        client.on('timeout', () => client.destroy(new Error('no answer')))
        const end = new Promise<string>((resolve) => {
          client.on('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message))
          client.on('close', () => resolve('closed'))
        })
        const say = async (word: string) => {
          client.write(word)
          const heard = once(client, 'data').then(([data]) => String(data))
          return Promise.race([heard, end])
        }
        t.equal(await say('before'), 'before')
        const closing = mode.close()
        await until('the end of its rules', () => !rules().includes('KUBE-PORTALS-CONTAINER'))
        return { client, say, end, closing }
      }
      const patient = await begin(600_000)
      t.equal(await ask(clusterIp, 80, silenceMs), 'no answer', 'no new client gets in')
      t.equal(await patient.say('after'), 'after', 'the open connection goes on')
      patient.client.end()
      t.equal(await patient.end, 'closed')
      await patient.closing
      t.notMatch(rules(), /KUBE-/, 'the last rule has gone')

      const idle = await begin(100)
      t.equal(await idle.end, 'ECONNRESET', 'who is cut is told')
      await idle.closing
      t.notMatch(rules(), /KUBE-/)
    },
  )
}

t.test(
  'cleanup removes what a killed process has left in the folder of takeovers',
  { skip },
  async (t) => {
    const folder = join(t.testdir(), 'takeover')
    mkdirSync(folder)
    writeFileSync(takeoverPath(folder), '')
    writeFileSync(successionPath(folder), '')
    const config = configWith({ 'userspace.takeoverFolder': folder })
    await definition.cleanup({ log: quietLog, meter: quietMeter, resync: () => undefined }, config)
    t.notOk(existsSync(folder))
  },
)

t.test('the drain chain of a killed process is removed', { skip }, async (t) => {
  const leave = ['-N', 'KUBE-PORTALS-DRAIN']
  execSync('iptables', leave)
  const mode = await openMode(t)
  mode.cluster.put(service({ clusterIp, endpoints: [await openEndpoint(t, 'web')] }))
  await mode.sync()
  t.notMatch(rules(), /DRAIN/, 'by the next process')
  await mode.close()
  execSync('iptables', leave)
  await definition.cleanup({ log: quietLog, meter: quietMeter, resync: () => undefined })
  t.notMatch(rules(), /KUBE-/, 'by cleanup')
})

t.test('cleanup finds rules in the backend that the node used before', { skip }, async (t) => {
  const canary = (backend: string, verb: '-N' | '-X') =>
    execSync(`iptables-${backend}`, ['-t', 'mangle', verb, 'KUBE-KUBELET-CANARY'])
  canary('legacy', '-N')
  const mode = await openMode(t, runProgram, { sourceAddress: 'auto' })
  mode.cluster.put(service({ clusterIp, endpoints: [await openEndpoint(t, 'web')] }))
  await mode.sync()
  t.equal(await ask(clusterIp), 'web')
  canary('legacy', '-X')
  canary('nft', '-N')
  t.teardown(() => canary('nft', '-X'))
  const saved = () => execSync('iptables-legacy-save')
  t.match(saved(), /KUBE-PORTALS/)
  t.strictSame(mode.warnings, [])
  const next = await openMode(t)
  t.match(next.warnings, [/other iptables backend .* `kube-proxy cleanup`/])
  await definition.cleanup({ log: quietLog, meter: quietMeter, resync: () => undefined })
  t.notMatch(saved(), /KUBE-/)
})

for (const end of ['the process', 'cleanup'] as const) {
  t.test(
    `a foreign jump to chains of this mode does not keep ${end} from removing rules`,
    { skip },
    async (t) => {
      const jumps = [
        ['nat', 'KUBE-PORTALS-CONTAINER'],
        ['nat', 'KUBE-PORTALS-HOST-3F'],
        ['filter', 'KUBE-PORTALS-REFUSED'],
        ['filter', 'KUBE-PORTALS-DRAIN'],
        ['mangle', 'KUBE-PORTALS-SOURCE'],
      ] as const
      const iptables = (...args: string[]) => execSync('iptables', args)
      const tables = new Set(jumps.map(([table]) => table))
      for (const table of tables) iptables('-t', table, '-N', 'FOREIGN')
      for (const [table, chain] of jumps) {
        iptables('-t', table, '-N', chain)
        iptables('-t', table, '-A', 'FOREIGN', '-j', chain)
      }
      t.teardown(() => {
        for (const table of tables) iptables('-t', table, '-F', 'FOREIGN')
        for (const place of jumps) iptables('-t', place[0], '-X', place[1])
        for (const table of tables) iptables('-t', table, '-X', 'FOREIGN')
      })
      const mode = await openMode(t, runProgram, { sourceAddress: 'auto' })
      mode.cluster.put(service({ clusterIp, endpoints: [await openEndpoint(t, 'web')] }))
      await mode.sync()
      t.equal(await ask(clusterIp), 'web', 'nor from writing them')
      if (end === 'the process') await mode.close()
      else await definition.cleanup({ log: quietLog, meter: quietMeter, resync: () => undefined })
      const left = rules().match(/^(-A|:\S+ -).*/gm) ?? []
      const foreign = [
        ...Array.from(tables, () => ':FOREIGN -'),
        ...jumps.flatMap(([, chain]) => [`:${chain} -`, `-A FOREIGN -j ${chain}`]),
      ]
      t.same(left.map((line) => line.trim()).sort(), foreign.sort())
    },
  )
}

for (const datapath of ['net', 'splice'] as const) {
  t.test(
    `endpoints that lead back to the proxy are refused and reported, data path ${datapath}`,
    { skip },
    async (t) => {
      const mode = await openMode(t, runProgram, { datapath })
      const at = (ip: string, port = 80) => [{ ip, port }]
      const web = await openEndpoint(t, 'web')
      const [itself, one, other] = ['10.96.2.1', '10.96.2.2', '10.96.2.3']
      // Of an interface without a carrier, as of a bridge without pods.
      const dark = '172.17.0.1'
      mode.cluster.setLocalAddresses(['127.0.0.1', nodeIp, dark])
      mode.cluster.put(
        service({ name: 'itself', clusterIp: itself, endpoints: at(itself) }),
        service({ name: 'one', clusterIp: one, endpoints: at(other) }),
        service({ name: 'other', clusterIp: other, endpoints: at(one) }),
        service({
          name: 'node',
          clusterIp: '10.96.2.4',
          nodePort: 30_080,
          endpoints: at(nodeIp, 30_080),
        }),
        service({ name: 'dark', clusterIp: '10.96.2.6', endpoints: at(dark, 30_080) }),
        service({ name: 'dns', protocol: 'UDP', clusterIp: itself, endpoints: at(itself) }),
        service({
          name: 'half',
          clusterIp: '10.96.2.5',
          port: web.port,
          endpoints: [...at('10.96.2.5', web.port), web],
        }),
      )
      const failed = await mode.sync()
      t.same(new Set(failed.map(({ event }) => event)), new Set(['EndpointLeadsBack']))
      t.equal(failed.length, 7)
      t.match(failed[0]?.reason, /^endpoint 10\.96\.2\.\d:80 leads back to this proxy/)
      const sockets = () => readdirSync('/proc/self/fd').length
      const before = sockets()
      for (const ip of [itself, one, other, '10.96.2.4']) t.equal(await ask(ip), 'ECONNRESET', ip)
      t.equal(await ask(nodeIp, 30_080), 'ECONNRESET')
      t.equal(await ask('10.96.2.5', web.port), 'web', 'the other endpoint gets everything')
      t.equal(await ask('10.96.2.5', web.port), 'web')
      const client = createSocket('udp4')
      client.send('x', 80, itself)
      await delay(300)
      client.close()
      t.ok(sockets() < before + 10, `${sockets()} descriptors, ${before} before`)

      mode.cluster.put(
        service({ name: 'one', clusterIp: one, endpoints: [await openEndpoint(t, 'web')] }),
      )
      await mode.sync()
      t.equal(await ask(one), 'web')
      t.equal(await ask(other), 'ECONNRESET', 'a Service is no endpoint, even one that ends well')
      mode.cluster.remove(service({ name: 'itself' }))
      await mode.sync()
    },
  )
}
