import t from 'tap'
import { Assembler } from '../../lib/kernel/bpf/assembler.js'
import { typesOfSocketMap } from '../../lib/kernel/bpf/btf.js'
import { instructionBytes } from '../../lib/kernel/bpf/instructions.js'
import { commands } from '../../lib/kernel/bpf/commands.js'
import { BpfMap } from '../../lib/kernel/bpf/map.js'
import { openSystemCalls } from '../../lib/kernel/bpf/system-calls.js'
import { mountOf, mountsOf, openCgroup } from '../../lib/kernel/cgroup.js'

/** The instructions of a program, each as the eight bytes that the kernel reads. */
function hex(code: Assembler): readonly string[] {
  const bytes = code.finish()
  return Array.from({ length: bytes.length / instructionBytes }, (_, index) =>
    bytes.toString('hex', index * instructionBytes, (index + 1) * instructionBytes),
  )
}

t.test('a program is assembled into the bytes of the instruction set', async (t) => {
  const code = new Assembler()
    .set('r6', 'r1')
    .set('r0', -1)
    .load('r1', 'u16', 'r6', 24)
    .store('u8', 'frame', -4, 7)
    .store('u64', 'frame', -16, 'r1')
    .compute('shift right', 'r1', 56)
    .compute('modulo', 'r0', 'r1')
    .atomicAdd('r0', 8, 'r1')
    .setWide('r2', 0xffff_ffff_0000_0001n)
    .mapAddress('r1', { fd: 9 })
    .frameAddress('r2', -16)
    .call('map_lookup_elem')
    .jumpIf('r0', '==', 0, 'end')
    .jumpIf('r0', '!=', 'r1', 'end')
    .jump('end')
    .label('end')
    .exit()
  t.same(hex(code), [
    'bf16000000000000',
    'b7000000ffffffff',
    '6961180000000000',
    '720afcff07000000',
    '7b1af0ff00000000',
    '7701000038000000',
    '9f10000000000000',
    'db10080000000000',
    '1802000001000000',
    '00000000ffffffff',
    '1811000009000000',
    '0000000000000000',
    'bfa2000000000000',
    '07020000f0ffffff',
    '8500000001000000',
    '1500020000000000',
    '5d10010000000000',
    '0500000000000000',
    '9500000000000000',
  ])
})

t.test('a jump backwards is counted from the instruction after it', async (t) => {
  const code = new Assembler().label('again').set('r0', 0).jumpIf('r0', '!=', 0, 'again').exit()
  t.equal(hex(code)[1], '5500feff00000000')
})

t.test('faults of a program are told by the name of the label', async (t) => {
  t.throws(() => new Assembler().jump('nowhere').finish(), /no label "nowhere"/)
  t.throws(() => new Assembler().label('a').exit().label('a'), /"a" is at two places/)
  t.throws(() => new Assembler().label('lonely').exit().finish(), /nothing jumps to label "lonely"/)
  t.throws(() => new Assembler().jump('end').label('end').finish(), /"end" is behind the end/)
  const far = new Assembler().jump('end')
  for (let index = 0; index < 2 ** 15; index++) far.set('r0', 0)
  t.throws(() => far.label('end').exit().finish(), /"end" is too far away/)
})

t.test('new labels are all different', async (t) => {
  const code = new Assembler()
  t.not(code.freshLabel('next'), code.freshLabel('next'))
})

t.test('the types of a socket map describe an int and an array of bytes', async (t) => {
  const types = typesOfSocketMap(40)
  t.equal(types.readUInt16LE(0), 0xeb9f)
  const [typesLength, namesFrom, namesLength] = [12, 16, 20].map((at) => types.readUInt32LE(at))
  t.equal(namesFrom, typesLength)
  t.equal(types.length, 24 + Number(typesLength) + Number(namesLength))
  t.equal(types.readUInt32LE(24 + Number(typesLength) - 4), 40, 'the array has that many elements')
})

t.test('the mount of a file system is found, blanks in its path included', async (t) => {
  const mounts = [
    '24 1 0:22 / /proc rw - proc proc rw',
    '31 1 0:27 / /sys/fs/c\\040g rw,relatime shared:9 - cgroup2 cgroup2 rw',
    '32 1 0:27 / /other rw,relatime shared:9 - cgroup2 cgroup2 rw',
  ].join('\n')
  t.equal(mountOf('cgroup2', mounts), '/sys/fs/c g')
  t.same(mountsOf('cgroup2', mounts), ['/sys/fs/c g', '/other'])
  t.equal(mountOf('bpf', mounts), undefined)
})

t.test('a folder that is no cgroup is refused by name', async (t) => {
  t.throws(() => openCgroup('/proc'), {
    message: 'open cgroup /proc: this is no folder of cgroup2',
  })
  t.throws(() => openCgroup('/nowhere'), { message: /open cgroup \/nowhere: ENOENT/ })
})

t.test('a map that cannot be looked at is closed', async (t) => {
  const closed: number[] = []
  const calls = {
    ...openSystemCalls(),
    bpf: (command: number) => (command === commands.info ? -1 : 7),
    close: (fd: number) => void closed.push(fd),
  }
  t.throws(() => BpfMap.fromId(calls, 3), { message: /open eBPF map 3: .*EPERM/ })
  const spec = { name: 'test', kind: 'hash', keyBytes: 4, valueBytes: 8, entries: 1 } as const
  t.throws(() => BpfMap.open(calls, spec, 8), { message: /look at eBPF map test: .*EPERM/ })
  t.same(closed, [7, 8])
})
