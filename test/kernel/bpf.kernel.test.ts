import { execFileSync } from 'node:child_process'
import t from 'tap'
import { KernelError } from '../../lib/errors.js'
import { Assembler } from '../../lib/kernel/bpf/assembler.js'
import { attachedPrograms } from '../../lib/kernel/bpf/attached.js'
import { createLink, detachLink, linkInfo, updateLink } from '../../lib/kernel/bpf/link.js'
import { BpfMap, type MapSpec } from '../../lib/kernel/bpf/map.js'
import { MappedArray } from '../../lib/kernel/bpf/mapped-array.js'
import { networkCookie } from '../../lib/kernel/network-namespaces.js'
import { loadProgram } from '../../lib/kernel/bpf/program.js'
import { openSystemCalls } from '../../lib/kernel/bpf/system-calls.js'
import { openCgroup } from '../../lib/kernel/cgroup.js'
import { addNodeCgroup, removeCgroup } from '../../lib/lab/world/cgroups.js'
import { cgroupSkip, startCgroupClient } from '../support/cgroup-client.js'

const skip = cgroupSkip
const calls = openSystemCalls()

const key = (value: number) => Buffer.from(Uint32Array.of(value).buffer)
const spec = (kind: MapSpec['kind']): MapSpec => ({
  ...{ name: 'test', kind, keyBytes: 4, valueBytes: 8 },
  entries: 10_000,
})

t.test('a hash map takes, tells and forgets entries, thousands at once', { skip }, async (t) => {
  for (const kind of ['hash', 'recent'] as const) {
    const map = BpfMap.create(calls, spec(kind))
    t.teardown(() => map.close())
    t.equal(map.lookup(key(1)), undefined)
    map.update(key(1), Buffer.from('abcdefgh'))
    t.equal(map.lookup(key(1))?.toString(), 'abcdefgh')
    t.equal(map.delete(key(1)), true)
    t.equal(map.delete(key(1)), false, 'what is not there cannot be deleted')
    const value = Buffer.alloc(8)
    map.updateAll(Array.from({ length: 9000 }, (_, index) => [key(index), value]))
    t.equal(map.lookup(key(8999))?.length, 8)
    if (kind === 'hash') {
      const found = new Set(map.entries().map(([each]) => each.readUInt32LE(0)))
      t.equal(found.size, 9000, 'all are listed')
    }
    map.deleteAll([key(8999)])
    t.equal(map.lookup(key(8999)), undefined)
  }
})

t.test('a map that is full says so, with its name', { skip }, async (t) => {
  const map = BpfMap.create(calls, { ...spec('hash'), entries: 2 })
  t.teardown(() => map.close())
  map.updateAll([1, 2].map((each) => [key(each), Buffer.alloc(8)]))
  t.throws(() => map.update(key(3), Buffer.alloc(8)), { message: /eBPF map test/ })
})

t.test('a map is opened again only where its layout is the same', { skip }, async (t) => {
  const map = BpfMap.create(calls, spec('hash'))
  t.teardown(() => map.close())
  t.equal(BpfMap.open(calls, spec('hash'), map.fd).fd, map.fd)
  const other = BpfMap.create(calls, spec('hash'))
  t.throws(() => BpfMap.open(calls, { ...spec('hash'), valueBytes: 16 }, other.fd), {
    message: /another layout/,
  })
})

t.test('what is stored in a mapped array is in the kernel at once', { skip }, async (t) => {
  const array = new MappedArray(calls, { name: 'test', entries: 600, wordsPerEntry: 3 })
  t.teardown(() => array.close())
  array.store(599, 2, 0xffff_ffff_ffff_fffen)
  t.equal(array.load(599, 2), 0xffff_ffff_ffff_fffen)
  t.equal(array.map.lookup(key(599))?.readBigUInt64LE(16), 0xffff_ffff_ffff_fffen)
  t.throws(() => array.store(600, 0, 1n), RangeError)
  t.throws(() => array.store(0, 3, 1n), RangeError)
})

t.test('a map of sockets is made with types of our own', { skip }, async (t) => {
  const map = BpfMap.create(calls, { ...spec('per-socket'), valueBytes: 392, entries: 0 })
  t.doesNotThrow(() => map.close())
})

t.test('the error contains the text of the verifier', { skip }, async (t) => {
  const code = new Assembler().load('r0', 'u32', 'r1', 4000).exit().finish()
  try {
    loadProgram(calls, { name: 'test', hook: 'connect4', code })
    t.fail('the kernel takes a read outside of the context')
  } catch (error) {
    t.ok(error instanceof KernelError)
    t.match(error, { message: /load eBPF program test: .*invalid bpf_context access/ })
  }
})

const refusing = (errno: number) =>
  new Assembler().set('r1', -errno).call('set_retval').set('r0', 0).exit().finish()

t.test('a link holds a program, changes it and lets it go', { skip }, async (t) => {
  const folder = addNodeCgroup('link')
  t.teardown(() => removeCgroup(folder))
  const cgroup = openCgroup(folder)
  const client = startCgroupClient(folder)
  t.teardown(() => client.close())
  t.equal(cgroup.isRoot, false)
  const ask = async () => (await client.ask({ do: 'connect', host: '192.0.2.1', port: 9 })).error
  const [first, second] = [111, 13].map((errno) =>
    loadProgram(calls, { name: `test_${errno}`, hook: 'connect4', code: refusing(errno) }),
  )
  const link = createLink(calls, { hook: 'connect4', program: first ?? -1, cgroup: cgroup.fd })
  t.equal(linkInfo(calls, link).cgroupId, cgroup.id)
  t.equal(await ask(), 'ECONNREFUSED')
  const names = () => attachedPrograms(calls, cgroup.fd, 'connect4').map(({ name }) => name)
  t.same(names(), ['test_111'])
  updateLink(calls, link, second ?? -1)
  t.equal(await ask(), 'EACCES')
  detachLink(calls, link)
  t.equal(linkInfo(calls, link).cgroupId, 0n, 'a detached link belongs to no cgroup')
  t.same(names(), [])
  for (const fd of [link, first, second]) calls.close(fd ?? -1)
  cgroup.close()
})

t.test('every network namespace has its own number', { skip }, async (t) => {
  const module = JSON.stringify(new URL('../../lib/kernel/network-namespaces.js', import.meta.url))
  const code = `import(${module}).then((m) => console.log(String(m.networkCookie())))`
  const other = execFileSync('unshare', ['--net', process.execPath, '-e', code], {
    encoding: 'utf8',
  })
  t.equal(networkCookie(), networkCookie())
  t.not(BigInt(other.trim()), networkCookie())
})
