import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { Assembler } from '../../lib/kernel/bpf/assembler.js'
import { commands, pin } from '../../lib/kernel/bpf/commands.js'
import { BpfMap } from '../../lib/kernel/bpf/map.js'
import { loadProgram } from '../../lib/kernel/bpf/program.js'
import { networkCookie } from '../../lib/kernel/network-namespaces.js'
import { openSystemCalls, type SystemCalls } from '../../lib/kernel/bpf/system-calls.js'
import { Slice } from '../../lib/async.js'
import { openCgroup } from '../../lib/kernel/cgroup.js'
import { addNodeCgroup, removeCgroup } from '../../lib/lab/world/cgroups.js'
import { SocketApplier } from '../../lib/modes/ebpf/apply.js'
import { Attachment } from '../../lib/modes/ebpf/attachment.js'
import { cleanupSockets } from '../../lib/modes/ebpf/cleanup.js'
import { frontendKey } from '../../lib/modes/ebpf/frontend-layout.js'
import { targetId } from '../../lib/modes/ebpf/layout.js'
import { mapNames, pinFolders } from '../../lib/modes/ebpf/names.js'
import { Pins } from '../../lib/modes/ebpf/pins.js'
import { socketPlanner, type SocketPlan } from '../../lib/modes/ebpf/plan.js'
import { probeSockets } from '../../lib/modes/ebpf/probe.js'
import { OpenSharedMaps } from '../../lib/modes/ebpf/shared-maps.js'
import { forgetAll, knownByFamily } from '../../lib/modes/known.js'
import { cgroupSkip, serveTcp, startCgroupClient } from '../support/cgroup-client.js'
import {
  createGuardedNode,
  createNode,
  detachAll,
  mountBpffs,
  withMap,
  type Node,
} from '../support/ebpf-node.js'
import { contextOf } from '../support/mode-context.js'
import { untilTrue } from '../support/until.js'
import { service, states } from '../support/states.js'

const skip = cgroupSkip
const ownFolder = `${pinFolders.network}${networkCookie()}`

/** Starts the mode with this bpffs and connects to a Service. */
async function askAfterStart(t: Test, { client, start }: Node, bpffs: string) {
  const server = await serveTcp('one', '127.0.0.1')
  t.teardown(() => server.close())
  const endpoints = [{ ip: '127.0.0.1', port: server.port }]
  const settings = { endpointRules: { allowsLoopback: true } }
  const { mode, apply } = await start({ 'ebpf.bpffs': bpffs })
  await apply(states('IPv4', settings).put(service({ endpoints })))
  const { name } = await client.ask({ do: 'connect', host: '10.96.0.10', port: 80 })
  await mode.close()
  return name
}

t.test('pins of another version, and of another layout, are replaced', { skip }, async (t) => {
  const node = await createNode(t, 'versions')
  const bpffs = mountBpffs(t)
  const [other, own] = ['v0', pinFolders.version].map((name) => join(bpffs, pinFolders.own, name))
  const calls = openSystemCalls()
  for (const folder of [other ?? '', own ?? '']) {
    mkdirSync(folder, { recursive: true })
    const spec = { kind: 'hash', keyBytes: 4, valueBytes: 4, entries: 8 } as const
    const map = BpfMap.create(calls, { name: 'other', ...spec })
    for (const name of [mapNames.connections, mapNames.open]) pin(calls, map.fd, join(folder, name))
    map.close()
  }
  t.equal(await askAfterStart(t, node, bpffs), 'one')
  t.same(readdirSync(join(bpffs, pinFolders.own)), [ownFolder])
  t.same(readdirSync(join(bpffs, pinFolders.own, ownFolder)), [pinFolders.version])
  t.equal(await askAfterStart(t, node, bpffs), 'one', 'and found by the next process')
  await cleanupSockets(contextOf().context, [bpffs])
})

t.test('a cgroup that is removed and made anew is served', { skip }, async (t) => {
  const { cgroup, client, start } = await createNode(t, 'remade')
  const server = await serveTcp('one', '127.0.0.1')
  t.teardown(() => server.close())
  const { mode, apply } = await start({ 'ebpf.bpffs': mountBpffs(t) })
  t.teardown(() => mode.close())
  const endpoints = [{ ip: '127.0.0.1', port: server.port }]
  const settings = { endpointRules: { allowsLoopback: true } }
  const cluster = states('IPv4', settings).put(service({ endpoints }))
  await apply(cluster)
  await client.close()
  await removeCgroup(cgroup)
  mode.forget()
  await t.rejects(apply(cluster), { message: /open cgroup .*ENOENT/ })
  t.equal(addNodeCgroup('remade'), cgroup)
  const other = startCgroupClient(cgroup)
  t.teardown(() => other.close())
  await apply(cluster)
  t.equal((await other.ask({ do: 'connect', host: '10.96.0.10', port: 80 })).name, 'one')
})

t.test('a bpffs that became read-only keeps nothing', { skip }, async (t) => {
  const node = await createNode(t, 'readonly')
  const bpffs = mountBpffs(t)
  const remount = (how: string) => execFileSync('mount', ['-o', `remount,${how}`, bpffs])
  mkdirSync(join(bpffs, pinFolders.own, pinFolders.version), { recursive: true })
  remount('ro')
  t.equal(await askAfterStart(t, node, bpffs), 'one', 'connections are translated all the same')
  const { context } = contextOf()
  const settings = { cgroup: node.cgroup, bpffs, sockets: 'all' } as const
  const found = probeSockets({ settings, log: context.log }).find(({ what }) => what === 'bpffs')
  t.match(found, { ok: false, required: false, seen: /EROFS/, fix: /packet path while the proxy/ })
  const other = mountBpffs(t)
  mkdirSync(join(other, pinFolders.own, pinFolders.version), { recursive: true })
  const message = /remove eBPF pins at .*EROFS.*; their programs go on; make it writable/
  await t.rejects(cleanupSockets(context, [bpffs, other]), { message })
  t.notOk(readdirSync(other).includes(pinFolders.own), 'the others are removed')
  const writable = t.testdir()
  execFileSync('mount', ['--bind', bpffs, writable])
  t.teardown(() => execFileSync('umount', [writable]))
  execFileSync('mount', ['-o', 'remount,bind,ro', bpffs])
  execFileSync('mount', ['-o', 'remount,rw', writable])
  await cleanupSockets(context, [bpffs, writable])
  t.notOk(readdirSync(bpffs).includes(pinFolders.own), 'also where it is mounted elsewhere, too')
})

t.test('programs come back where pins are gone, or can be kept no more', { skip }, async (t) => {
  const { client, cgroup, start } = await createNode(t, 'unpinned')
  const bpffs = mountBpffs(t)
  const server = await serveTcp('one', '127.0.0.1')
  t.teardown(() => server.close())
  const { mode, apply } = await start({ 'ebpf.bpffs': bpffs })
  t.teardown(() => mode.close())
  const endpoints = [{ ip: '127.0.0.1', port: server.port }]
  const cluster = states('IPv4', { endpointRules: { allowsLoopback: true } })
  const repair = async (nodePort: number) => {
    mode.forget()
    await apply(cluster.put(service({ endpoints, nodePort })))
    return (await client.ask({ do: 'connect', host: '10.96.0.10', port: 80 })).name
  }
  t.equal(await repair(30001), 'one')
  await cleanupSockets(contextOf().context, [bpffs])
  t.equal(await repair(30002), 'one', 'another process ran cleanup')
  const pinned = readdirSync(join(bpffs, pinFolders.own, ownFolder, pinFolders.version))
  t.ok(pinned.includes('link-connect4'))
  execFileSync('mount', ['-o', 'remount,ro', bpffs])
  detachAll(cgroup)
  t.equal(await repair(30003), 'one', 'nothing can be pinned')
  execFileSync('mount', ['-o', 'remount,rw', bpffs])
})

t.test('pins that somebody removes are back, so a restart has no gap', { skip }, async (t) => {
  const bpffs = mountBpffs(t)
  const folder = join(bpffs, pinFolders.own, ownFolder, pinFolders.version)
  const pinned = () => (existsSync(folder) ? readdirSync(folder).sort() : [])
  const remount = () => {
    execFileSync('umount', [bpffs])
    execFileSync('mount', ['-t', 'bpf', 'bpf', bpffs])
  }
  const server = await serveTcp('one', '127.0.0.1')
  t.teardown(() => server.close())
  const endpoints = [{ ip: '127.0.0.1', port: server.port }]
  const settings = { endpointRules: { allowsLoopback: true } }
  const { client, start } = await createNode(t, 'pins')
  // The first start pins everything, the second one finds everything pinned.
  for (const remove of [() => rmSync(join(bpffs, pinFolders.own), { recursive: true }), remount]) {
    const { mode, apply } = await start({ 'ebpf.bpffs': bpffs, 'nftables.syncPeriod': 20 })
    await apply(states('IPv4', settings).put(service({ endpoints })))
    const stop = new AbortController()
    t.teardown(() => stop.abort())
    const running = mode.run(stop.signal)
    const all = pinned()
    t.ok(all.includes('link-connect4'))
    remove()
    await untilTrue(() => pinned().length === all.length)
    t.same(pinned(), all)
    stop.abort()
    await running
    await mode.close()
    const { name } = await client.ask({ do: 'connect', host: '10.96.0.10', port: 80 })
    t.equal(name, 'one', 'programs outlive their process')
  }
})

t.test('a pin that could not be replaced is replaced later', { skip }, (t) => {
  const [bpffs, calls, name] = [mountBpffs(t), openSystemCalls(), mapNames.open]
  const remount = (how: string) => execFileSync('mount', ['-o', `remount,${how}`, bpffs])
  const spec = { name, kind: 'hash', keyBytes: 4, valueBytes: 4, entries: 8 } as const
  const pins = Pins.open(calls, bpffs, contextOf().context.log)
  const [older, newer] = [BpfMap.create(calls, spec), BpfMap.create(calls, spec)]
  const pinned = () => {
    const map = BpfMap.open(calls, spec, pins?.find(name) ?? -1)
    t.teardown(() => map.close())
    return map.id
  }
  t.teardown(() => [older, newer].forEach((each) => each.close()))
  pins?.keep(name, older.fd)
  remount('ro')
  pins?.keep(name, newer.fd)
  pins?.restore()
  remount('rw')
  t.equal(pinned(), older.id)
  pins?.restore()
  t.equal(pinned(), newer.id)
  t.end()
})

t.test('a link that was closed is pinned no more', { skip }, async (t) => {
  const { cgroup: path, client } = await createNode(t, 'closed-link')
  await client.close()
  const [kernel, bpffs] = [openSystemCalls(), mountBpffs(t)]
  let refused = -1
  const bpf: SystemCalls['bpf'] = (command, attributes) =>
    command === refused ? -12 : kernel.bpf(command, attributes)
  const calls = { ...kernel, bpf }
  const pins = Pins.open(calls, bpffs, contextOf().context.log)
  const cgroup = openCgroup(path)
  const attachment = new Attachment({ calls, cgroup, pins, network: networkCookie() })
  t.teardown(() => [attachment, cgroup].forEach((each) => each.close()))
  const put = () => {
    const code = new Assembler().set('r0', 1).exit().finish()
    const program = loadProgram(calls, { name: 'test', hook: 'connect4', code })
    try {
      attachment.put('connect4', program)
    } finally {
      calls.close(program)
    }
  }
  put()
  await removeCgroup(path)
  addNodeCgroup('closed-link')
  refused = commands.createLink
  t.throws(put, /attach an eBPF program/)
  t.doesNotThrow(() => pins?.restore(), 'its descriptor may be of something else by now')
  refused = -1
  put()
  pins?.restore()
  t.ok(attachment.has('connect4'))
})

t.test('what somebody changed in the maps is noticed and mended', { skip }, async (t) => {
  const { client, cgroup, mode, apply, resyncs } = await createGuardedNode(t, 'guard-maps')
  const server = await serveTcp('one', '127.0.0.1')
  t.teardown(() => server.close())
  const endpoints = [{ ip: '127.0.0.1', port: server.port }]
  const affinitySeconds = 60
  const frontend = frontendKey('IPv4', { address: '10.96.0.10', protocol: 'TCP', port: 80 })
  const cluster = states('IPv4', { endpointRules: { allowsLoopback: true } }).put(
    service({ endpoints, affinitySeconds }),
  )
  const changes: readonly (readonly [
    map: keyof typeof mapNames,
    change: (map: BpfMap) => void,
    told: RegExp,
  ])[] = [
    ['frontends', (map) => map.delete(frontend), /changed frontend 10\.96\.0\.10:80 TCP/],
    ['frontends', (map) => map.update(frontend, Buffer.alloc(8, 1)), /changed frontend/],
    ['frontends', (map) => map.update(Buffer.alloc(8, 1), Buffer.alloc(8)), /added 1 entry/],
    [
      'services',
      (map) => map.update(Buffer.alloc(4), Buffer.alloc(24)),
      /changed the endpoints of/,
    ],
    ['backends', (map) => map.update(Buffer.alloc(4), Buffer.alloc(8)), /changed the endpoints of/],
    ['members', (map) => map.delete(firstKey(map)), /changed the endpoints of/],
    ['members', (map) => map.update(firstKey(map), Buffer.alloc(1)), /changed the endpoints of/],
    ['members', (map) => map.update(Buffer.alloc(12), Buffer.alloc(1)), /added 1 entry/],
  ]
  for (const [name, change, told] of changes) {
    mode.forget()
    await apply(cluster)
    const { name: found } = await client.ask({ do: 'connect', host: '10.96.0.10', port: 80 })
    t.equal(found, 'one', 'mended')
    const seen = resyncs.length
    withMap(cgroup, name, change)
    await untilTrue(() => resyncs.length > seen)
    t.match(resyncs.at(-1), told, name)
  }
})

const firstKey = (map: BpfMap) => map.entries()[0]?.[0] ?? Buffer.alloc(0)

t.test('syncs during a comparison of the maps are no damage', { skip }, async (t) => {
  const { apply, resyncs } = await createGuardedNode(t, 'guard-syncs')
  const many = 2000
  const numbered = (index: number, endpoints: number) =>
    service({ name: `s${index}`, clusterIp: `10.97.${index >> 8}.${index & 255}`, endpoints })
  const all = Array.from({ length: many }, (_, index) => numbered(index, 10))
  const cluster = states('IPv4').put(...all)
  await apply(cluster)
  const end = performance.now() + 4000
  for (let turn = 0; performance.now() < end; turn++) {
    await apply(cluster.put(numbered((turn * 7) % many, 1 + (turn % 9))))
    await new Promise(setImmediate)
  }
  t.same(resyncs, [])
})

t.test('a close ends the look at programs and maps', { skip }, async (t) => {
  const { start } = await createNode(t, 'guard-closed')
  const { mode, apply } = await start({ 'nftables.syncPeriod': 20 })
  await apply(states('IPv4').put(service()))
  const stop = new AbortController()
  t.teardown(() => stop.abort())
  let hasEnded = false
  const running = mode.run(stop.signal).then(() => (hasEnded = true))
  await mode.close()
  await new Promise(setImmediate)
  t.ok(hasEnded)
  stop.abort()
  await running
})

t.test('tables that are replaced while they are compared are left alone', { skip }, async (t) => {
  const node = await createNode(t, 'guard-replaced')
  const [calls, cgroup, log] = [openSystemCalls(), openCgroup(node.cgroup), contextOf().context.log]
  const shared = new OpenSharedMaps(calls, undefined, log)
  const network = networkCookie()
  const attachment = new Attachment({ calls, cgroup, pins: undefined, network })
  const known = knownByFamily<SocketPlan>()
  const applier = new SocketApplier({
    ...{ calls, attachment, shared, known, hostCookie: network, sockets: 'all' },
    ...{ connectedUdp: false, flows: undefined, now: () => performance.now() },
  })
  t.teardown(() => [attachment, applier, shared, cgroup].forEach((each) => each.close()))
  const plans = socketPlanner({ localhostNodePorts: true })
  const all = [
    plans(states('IPv4').put(service()).take()),
    plans(
      states('IPv6')
        .put(service({ clusterIp: 'fd00:96::10' }))
        .take(),
    ),
  ]
  const renew = async (of: readonly SocketPlan[]) => {
    forgetAll(known)
    for (const plan of of) await applier.apply(plan)
  }
  for (const renewed of [all, all.slice(1), all.slice(0, 1)]) {
    await renew(all)
    let rests = 0
    const slice = new Slice(0)
    slice.rest = async () => {
      if (rests++ === 1) await renew(renewed)
    }
    t.equal(await applier.damage(slice), undefined)
    t.ok(rests > 1, `${rests} rests`)
  }
})

t.test('two Services with one number in the maps are no damage', { skip }, async (t) => {
  const { apply, resyncs } = await createGuardedNode(t, 'guard-numbers')
  const udp = { namespace: 'tenant', portName: 'dns', protocol: 'UDP' as const }
  const [one, two] = ['s16c07e9103', 'se9389d2641']
  t.equal(targetId(`tenant/${one}:dns/UDP`), targetId(`tenant/${two}:dns/UDP`))
  const endpoints = [{ ip: '10.180.0.1', local: false }]
  const clusterIp = '10.96.0.11'
  const apart = { name: two, clusterIp, internalPolicyLocal: true }
  await apply(
    states('IPv4').put(
      service({ ...udp, name: one, endpoints }),
      service({ ...udp, ...apart, endpoints }),
    ),
  )
  // A comparison begins a second after the one before.
  await new Promise((resolve) => setTimeout(resolve, 2500))
  t.same(resyncs, [])
})

t.test('what a kernel refuses is said, and what to do', { skip }, (t) => {
  const real = openSystemCalls()
  const refusing = (command: number, result: number): SystemCalls => ({
    ...real,
    bpf: (asked, bytes) => (asked === command ? result : real.bpf(asked, bytes)),
  })
  const [notPermitted, invalid, tooManyFiles] = [-1, -22, -24]
  const { log } = contextOf().context
  const probed = (calls: SystemCalls, kernel = '6.1.0-13-amd64') =>
    probeSockets({
      ...{ settings: { cgroup: '', bpffs: '', sockets: 'all' as const }, log, kernel },
      openCalls: () => calls,
    })
  const mayNot = refusing(commands.createMap, notPermitted)
  const cannot = refusing(commands.loadProgram, invalid)
  t.match(probed(mayNot), [
    { ok: false, required: true, seen: /create eBPF map .*EPERM/, fix: /seccomp or a security/ },
  ])
  t.match(probed(cannot), [
    { ok: false, required: true, seen: /load eBPF program kpts_\w+: /, fix: /CONFIG_CGROUP_BPF/ },
  ])
  const few = refusing(commands.createMap, tooManyFiles)
  t.match(probed(few), [{ ok: false, seen: /EMFILE/, fix: /limit of open files/ }])
  // Linux 5.10 answers EPERM to root at the first map if too little memory may be locked.
  for (const [calls, kernel] of [
    [mayNot, '5.10.0-46-cloud-amd64'],
    [cannot, '5.13.0'],
    [cannot, '5.17.15'],
  ] as const) {
    const fix = `use Linux 5.18 or newer; this is ${kernel}`
    t.match(probed(calls, kernel), [{ ok: false, required: true, fix }], kernel)
  }
  t.end()
})
