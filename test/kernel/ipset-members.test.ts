import t, { type Test } from 'tap'
import { IpSetBatch, IpSets } from '../../lib/kernel/ipset.js'
import { IpSetMembers } from '../../lib/kernel/ipset-members.js'
import { runCommand, type Run } from '../../lib/kernel/command.js'
import { enterPrivateNetns } from '../support/private-netns.js'

const skip = enterPrivateNetns() ?? false

/** Of each type that ipvs mode has: members as the program prints them, in both families. */
const sets = [
  { name: 'ip4', type: 'hash:ip', family: 'inet', members: ['10.96.0.1'] },
  { name: 'ip6', type: 'hash:ip', family: 'inet6', members: ['fd00:96::1'] },
  {
    ...{ name: 'port4', type: 'hash:ip,port', family: 'inet' },
    members: ['10.96.0.1,tcp:80', '10.96.0.1,udp:53', '10.96.0.1,sctp:65535'],
  },
  { name: 'port6', type: 'hash:ip,port', family: 'inet6', members: ['fd00:96::1,tcp:80'] },
  {
    ...{ name: 'loop4', type: 'hash:ip,port,ip', family: 'inet' },
    members: ['10.180.0.1,tcp:8080,10.180.0.1'],
  },
  {
    ...{ name: 'loop6', type: 'hash:ip,port,ip', family: 'inet6' },
    members: ['fd00:180::1,udp:53,fd00:180::1'],
  },
  {
    ...{ name: 'range4', type: 'hash:ip,port,net', family: 'inet' },
    members: ['10.96.0.1,tcp:80,0.0.0.0/1', '10.96.0.1,tcp:80,198.51.100.0/24'],
  },
  {
    ...{ name: 'range6', type: 'hash:ip,port,net', family: 'inet6' },
    members: ['fd00:96::1,tcp:80,2001:db8::/32', 'fd00:96::1,tcp:80,8000::/1'],
  },
  { name: 'ports', type: 'bitmap:port', family: undefined, members: ['1', '30080', '65535'] },
] as const

/** Without /etc/protocols, as in small images, the program knows no names of protocols. */
const withoutNames: Run = (file, args, options) => {
  const script = '[ ! -e /etc/protocols ] || mount --bind /dev/null /etc/protocols; exec "$0" "$@"'
  return runCommand('unshare', ['--mount', 'sh', '-c', script, file, ...args], options)
}

t.test('members by netlink are those of the program', { skip }, (t) =>
  membersAgree(t, new IpSets()),
)

t.test('the program needs no names of protocols', { skip }, (t) =>
  membersAgree(t, new IpSets(withoutNames)),
)

async function membersAgree(t: Test, tool: IpSets): Promise<void> {
  const members = new IpSetMembers()
  t.teardown(() => members.close())
  const batch = new IpSetBatch()
  for (const { name, type, family } of sets) {
    const options = family === undefined ? 'range 0-65535' : `family ${family} maxelem 4`
    batch.create({ name, type, options })
  }
  await tool.restore(batch)
  const all = sets.flatMap(({ name, members }) => members.map((member) => ({ set: name, member })))
  const add = all.map((one) => ({ do: 'add' as const, ...one }))
  const remove = all.map((one) => ({ do: 'delete' as const, ...one }))
  const list = async () => {
    const saved = await tool.list()
    return sets.flatMap(({ name }) =>
      [...(saved.get(name)?.members ?? [])].sort().map((member) => ({ set: name, member })),
    )
  }
  const sorted = sets.flatMap(({ name, members }) =>
    [...members].sort().map((member) => ({ set: name, member })),
  )
  for (const round of ['once', 'again']) {
    t.ok((await members.change(add)) > 0)
    t.same(await list(), sorted, round)
  }
  const program = new IpSetBatch()
  for (const { set, member } of all) program.delete(set, member)
  await tool.restore(program)
  t.same(await list(), [], 'the program deletes what netlink has added')
  const back = new IpSetBatch()
  for (const { set, member } of all) back.add(set, member)
  await tool.restore(back)
  for (let round = 0; round < 2; round++) await members.change(remove)
  t.same(await list(), [], 'and the other way round')
  t.equal(await members.change([]), 0)
}

t.test('a refused member is named, and does not keep back the others', { skip }, async (t) => {
  const tool = new IpSets()
  const members = new IpSetMembers()
  t.teardown(() => members.close())
  await tool.restore(
    new IpSetBatch().create({ name: 'small', type: 'hash:ip', options: 'family inet maxelem 2' }),
  )
  const add = (set: string, member: string) => ({ do: 'add' as const, set, member })
  const many = Array.from({ length: 300 }, (_, index) => add('small', `10.0.1.${index % 250}`))
  await t.rejects(members.change(many), {
    message: /^add member 10\.0\.1\.\d+ of ipset small: the set is full \(E4352\)$/,
  })
  t.equal((await tool.list()).get('small')?.members.size, 2)
  await t.rejects(members.change([add('none', '10.0.0.1'), add('small', '10.0.1.0')]), {
    name: 'KernelError',
    kind: 'not-found',
    message: /^add member 10\.0\.0\.1 of ipset none: /,
  })
  for (const bad of ['x', '10.0.0.1,tcpx:1', '10.0.0.1,tcp:80,y']) {
    await t.rejects(members.change([add('small', bad)]), { name: 'RangeError' }, bad)
  }
})
