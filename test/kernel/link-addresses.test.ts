/**
 * The same tests for three ways to put addresses on a link, and tests of what only Windows does.
 */
import { join } from 'node:path'
import { writeFileSync } from 'node:fs'
import t, { type Test } from 'tap'
import { DeviceAddresses } from '../../lib/kernel/device-addresses.js'
import type { LinkAddresses } from '../../lib/kernel/link-addresses.js'
import { AddressJournal } from '../../lib/kernel/windows/address-journal.js'
import { canBind, WindowsAddresses } from '../../lib/kernel/windows/windows-addresses.js'
import { openIpHelperWriter } from '../../lib/kernel/windows/ip-helper-writer.js'
import { openNetshWriter } from '../../lib/kernel/windows/netsh-writer.js'
import { FakeLinks, lo } from '../support/fake-links.js'
import { FakeWindows } from '../support/fake-windows.js'

/** A machine that keeps its addresses while processes come and go. */
interface Machine {
  /** Opens the links, as a process does when it starts. */
  open(): LinkAddresses
  /** The addresses on the link that this program uses. */
  listed(): readonly string[]
  /** Somebody else puts an address on it. */
  addForeign(ip: string): Promise<void> | void
  /** Somebody else takes one away. */
  takeAway(ip: string): void
}

function linuxMachine(): Machine {
  const links = new FakeLinks()
  links.canMakeDummy = false
  return {
    open: () => new DeviceAddresses(links, { device: 'own', mark: 7, onLoopback: () => undefined }),
    listed: () => links.listed(lo),
    addForeign: (ip) => links.addAddresses('IPv4', lo, [ip]).then(() => undefined),
    takeAway: (ip) => links.on.get(lo)?.delete(ip),
  }
}

type Way = 'iphlpapi' | 'netsh'

function windowsMachine(t: Test, way: Way, windows = new FakeWindows()): Machine {
  const file = join(t.testdir(), 'state', 'addresses.json')
  const { interfaces, netsh: run } = windows
  return {
    open: () =>
      new WindowsAddresses({
        link: 'hns',
        openWriter: (link) => {
          if (way === 'iphlpapi') return openIpHelperWriter(windows.ipHelper(), link)
          if (!windows.on.has(link)) return undefined
          return openNetshWriter(link, { run, interfaces, program: 'netsh.exe' })
        },
        journal: new AddressJournal(file),
        canBind: windows.canBind,
        sleep: () => Promise.resolve(),
      }),
    listed: () => windows.listed(),
    addForeign: (ip) => void windows.on.get('hns')?.set(ip, 32),
    takeAway: (ip) => windows.on.get('hns')?.delete(ip),
  }
}

const machines: Readonly<Record<string, (t: Test) => Machine>> = {
  rtnetlink: linuxMachine,
  iphlpapi: (t) => windowsMachine(t, 'iphlpapi'),
  netsh: (t) => windowsMachine(t, 'netsh'),
}

for (const [name, machineOf] of Object.entries(machines)) {
  t.test(`${name}: addresses come and go, and those of others stay`, async (t) => {
    const machine = machineOf(t)
    await machine.addForeign('198.51.100.7')
    const link = machine.open()
    const ips = ['10.96.0.10', '10.96.0.11', '198.51.100.7']
    t.same([...(await link.foreign('IPv4', ips))], ['198.51.100.7'])
    t.same(await link.add('IPv4', ips.slice(0, 2)), [])
    t.same(await link.add('IPv4', ips.slice(0, 2)), [], 'ours may be there already')
    t.same([...(await link.ours('IPv4'))].sort(), ips.slice(0, 2))
    t.same([...(await link.foreign('IPv4', ips))], ['198.51.100.7'])
    t.same(await link.remove('IPv4', ['10.96.0.10', '198.51.100.7', '10.96.0.99']), [])
    t.same([...machine.listed()].sort(), ['10.96.0.11', '198.51.100.7'])
    link.close()
  })

  t.test(`${name}: ours are known after a crash`, async (t) => {
    const machine = machineOf(t)
    await machine.addForeign('198.51.100.7')
    await machine.open().add('IPv4', ['10.96.0.10', '10.96.0.11'])
    machine.takeAway('10.96.0.11')
    const next = machine.open()
    t.same(await next.ours('IPv4'), ['10.96.0.10'], 'what is gone is not ours any more')
    t.same(await next.remove('IPv4', await next.ours('IPv4')), [])
    await next.tidy()
    t.same(machine.listed(), ['198.51.100.7'])
    t.same(await next.ours('IPv4'), [])
  })
}

t.test('an interface gets rows of 80 bytes: single, no source, ready at once', async (t) => {
  const windows = new FakeWindows()
  const link = windowsMachine(t, 'iphlpapi', windows).open()
  await link.add('IPv4', ['10.96.0.10'])
  await link.add('IPv6', ['fd00::a'])
  await link.remove('IPv6', ['fd00::a'])
  t.same(windows.calls, [
    'create hns 10.96.0.10/32 skip=1 dad=4 valid=ffffffff',
    'create hns fd00::a/128 skip=1 dad=4 valid=ffffffff',
    'delete hns fd00::a/128 skip=1 dad=4 valid=ffffffff',
  ])
  t.same(windows.listed(), ['10.96.0.10'])
})

t.test('netsh gets its arguments one by one, without a shell', async (t) => {
  const windows = new FakeWindows()
  const link = windowsMachine(t, 'netsh', windows).open()
  await link.add('IPv4', ['10.96.0.10'])
  await link.add('IPv6', ['fd00::a'])
  await link.remove('IPv4', ['10.96.0.10'])
  await link.remove('IPv6', ['fd00::a'])
  t.same(windows.calls, [
    'netsh.exe interface ipv4 add address name=hns address=10.96.0.10 mask=255.255.255.255 skipassource=true store=active',
    'netsh.exe interface ipv6 add address interface=hns address=fd00::a/128 skipassource=true store=active',
    'netsh.exe interface ipv4 delete address name=hns address=10.96.0.10 store=active',
    'netsh.exe interface ipv6 delete address interface=hns address=fd00::a store=active',
  ])
})

for (const way of ['iphlpapi', 'netsh'] as const) {
  t.test(`${way}: success that changed nothing is a failure`, async (t) => {
    const windows = new FakeWindows()
    const link = windowsMachine(t, way, windows).open()
    windows.fault = 'lies'
    const [failed] = await link.add('IPv4', ['10.96.0.10'])
    t.match(failed?.error.message, /reported success, but hns does not have it/)
    t.same(await link.ours('IPv4'), [])
    windows.fault = 'none'
    await link.add('IPv4', ['10.96.0.10'])
    windows.fault = 'lies'
    const [kept] = await link.remove('IPv4', ['10.96.0.10'])
    t.match(kept?.error.message, /reported success, but hns still has it/)
    t.same(await link.ours('IPv4'), ['10.96.0.10'], 'it is tried again')
  })

  t.test(`${way}: a refusal is reported, and half-done work is still ours`, async (t) => {
    const windows = new FakeWindows()
    const link = windowsMachine(t, way, windows).open()
    windows.fault = 'denied'
    const [refused] = await link.add('IPv4', ['10.96.0.10'])
    t.match(refused?.error.message, way === 'netsh' ? /elevation/ : /error 5 .*denied/)
    windows.fault = 'adds but fails'
    t.equal((await link.add('IPv4', ['10.96.0.10'])).length, 1)
    t.same(await link.ours('IPv4'), ['10.96.0.10'])
    windows.fault = 'none'
    t.same(await link.remove('IPv4', ['10.96.0.10']), [])
    t.same(windows.listed(), [])
  })

  t.test(`${way}: an address counts when a socket can use it`, async (t) => {
    const windows = new FakeWindows()
    windows.tentative.set('10.96.0.10', 3)
    windows.tentative.set('10.96.0.11', 1e6)
    const link = windowsMachine(t, way, windows).open()
    const failures = await link.add('IPv4', ['10.96.0.10', '10.96.0.11'])
    t.match(failures, [{ ip: '10.96.0.11', error: /no socket can use it/ }])
    t.equal(windows.tentative.get('10.96.0.10'), 0)
  })

  t.test(`${way}: an address with a network is not ours, whatever the list says`, async (t) => {
    const windows = new FakeWindows()
    const machine = windowsMachine(t, way, windows)
    await machine.open().add('IPv4', ['10.96.0.10'])
    windows.on.get('hns')?.set('10.96.0.10', 24)
    const link = machine.open()
    t.same(await link.ours('IPv4'), [])
    await link.remove('IPv4', ['10.96.0.10'])
    t.same(windows.listed(), ['10.96.0.10'])
  })

  t.test(
    `${way}: what somebody else added and nobody can use yet does not become ours`,
    async (t) => {
      const windows = new FakeWindows()
      windows.on.get('hns')?.set('10.96.0.10', 32)
      windows.tentative.set('10.96.0.10', 2)
      const link = windowsMachine(t, way, windows).open()
      t.equal((await link.foreign('IPv4', ['10.96.0.10'])).size, 0)
      t.same(await link.add('IPv4', ['10.96.0.10']), [])
      t.same([await link.ours('IPv4'), windows.calls], [[], []])
    },
  )
}

t.test('iphlpapi: what others add after Windows has restarted is not ours', async (t) => {
  const windows = new FakeWindows()
  const machine = windowsMachine(t, 'iphlpapi', windows)
  await machine.open().add('IPv4', ['10.96.0.10', '10.96.0.11'])
  windows.on.set('hns', new Map([['10.96.0.10', 32]]))
  windows.sources.add('10.96.0.10')
  const link = machine.open()
  t.same(await link.ours('IPv4'), [])
  t.same([...(await link.foreign('IPv4', ['10.96.0.10']))], ['10.96.0.10'])
  t.same(await link.remove('IPv4', ['10.96.0.10']), [])
  t.same(windows.listed(), ['10.96.0.10'])
})

t.test('without the interface nothing is added, and the message says what to do', async (t) => {
  const windows = new FakeWindows()
  windows.on.delete('hns')
  const link = windowsMachine(t, 'iphlpapi', windows).open()
  await t.rejects(link.add('IPv4', ['10.96.0.10']), { message: /"hns"; .*--windows-interface/ })
  t.same(windows.calls, [])
  windows.on.set('hns', new Map())
  t.same(await link.add('IPv4', ['10.96.0.10']), [], 'an interface may appear later')
})

t.test('the list of our addresses', (t) => {
  const file = join(
    t.testdir({ 'bad.json': '{"ip":', 'odd.json': '[1,{"ip":"x","link":"a"}]' }),
    'a',
  )
  const journal = new AddressJournal(join(file, 'addresses.json'))
  t.same(journal.read(), [])
  journal.write([{ ip: '10.96.0.10', link: 'hns' }])
  t.same(journal.read(), [{ ip: '10.96.0.10', link: 'hns' }])
  for (const name of ['bad.json', 'odd.json']) {
    t.same(new AddressJournal(join(file, '..', name)).read(), [], name)
  }
  writeFileSync(join(file, '..', 'file'), '')
  const blocked = new AddressJournal(join(file, '..', 'file', 'addresses.json'))
  t.throws(() => blocked.write([]), { name: 'KernelError', message: /list of our addresses/ })
  t.end()
})

t.test('a socket proves that an address is on this machine', async (t) => {
  t.same(await Promise.all(['127.0.0.1', '192.0.2.77'].map(canBind)), [true, false])
})
