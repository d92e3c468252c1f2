/** Which interface of a Windows node gets the addresses of Services, and what changes them. */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import type { NetworkInterfaceInfo } from 'node:os'
import t, { type Test } from 'tap'
import { configWith } from '../../lib/config/load.js'
import type { IpHelper } from '../../lib/kernel/windows/ip-helper.js'
import { onAddresses } from '../../lib/modes/userspace/index.js'
import { openLink, type WindowsNode } from '../../lib/modes/winuserspace/open-link.js'
import { probeWindows } from '../../lib/modes/winuserspace/index.js'
import { state } from '../support/states.js'

const hns = 'vEthernet (HNS Internal NIC)'
const loopback = 'Loopback-Pseudoschnittstelle 1'

const info = (address: string): NetworkInterfaceInfo => ({
  ...{ address, netmask: '255.0.0.0', mac: '00:00:00:00:00:00', internal: true },
  ...{ family: 'IPv4', cidr: `${address}/8` },
})

/** A node with these interfaces. `hasHelper` says whether iphlpapi.dll can be called. */
function nodeWith(t: Test, names: readonly string[], hasHelper = true) {
  const commands: string[] = []
  const folder = t.testdir({})
  const helper: IpHelper = {
    luidOf: (name) => ({ status: names.includes(name) ? 0 : 87, luid: 1n }),
    initialize: () => undefined,
    create: () => 5,
    delete: () => 5,
    table: () => ({ status: 0, rows: Buffer.alloc(0) }),
  }
  const node: WindowsNode = {
    loadIpHelper: () =>
      hasHelper ? Promise.resolve(helper) : Promise.reject(new Error('no koffi in this test')),
    interfaces: () =>
      Object.fromEntries(
        names.map((name) => [name, [info(name === loopback ? '127.0.0.1' : '10.0.0.1')]]),
      ),
    run: (program, args) => {
      commands.push([program, ...args].join(' '))
      return Promise.resolve({ code: 0, stdout: '', stderr: '' })
    },
    environment: { ProgramData: folder, SystemRoot: 'C:\\Windows' },
    canBind: () => Promise.resolve(false),
  }
  return { node, commands, folder }
}

async function opened(node: WindowsNode, wanted = '') {
  const said: string[] = []
  const hear = (fields: object, text: string) => {
    said.push('interface' in fields ? String(fields.interface) : text)
  }
  const log = { debug: hear, info: hear, warn: hear, error: hear }
  return { link: await openLink(wanted, log, node), said }
}

t.test('the interface that is named, else that of HNS, else the loopback', async (t) => {
  const all = ['Ethernet', loopback, hns]
  for (const hasHelper of [true, false]) {
    const chosen = async (names: readonly string[], wanted?: string) =>
      (await opened(nodeWith(t, names, hasHelper).node, wanted)).said.at(-1)
    t.equal(await chosen(all, 'Ethernet'), 'Ethernet')
    t.equal(await chosen(all), hns)
    t.equal(await chosen(['Ethernet', loopback]), loopback, 'by its address, in any language')
  }
})

t.test('an interface that is not there is no reason to take another one', async (t) => {
  const { link, said } = await opened(nodeWith(t, [loopback, hns]).node, 'Ethernet 7')
  t.same(said, ['Ethernet 7'])
  await t.rejects(link.add('IPv4', ['10.96.0.1']), /no interface "Ethernet 7"; name an interface/)
})

t.test('netsh where iphlpapi.dll cannot be called, and its success is not believed', async (t) => {
  const { node, commands, folder } = nodeWith(t, [hns], false)
  const { link, said } = await opened(node)
  t.match(said[0], /changed by netsh/)
  const [failure] = await link.add('IPv4', ['10.96.0.1'])
  t.match(failure?.error.message, /netsh reported success, but .*HNS.* does not have it/)
  t.match(commands, [/netsh\.exe interface ipv4 add address name=vEthernet \(HNS Internal NIC\)/])
  t.ok(existsSync(join(folder, 'kube-proxy-ts', 'addresses.json')), 'written before it was added')
})

t.test('without ProgramData, or a list of interfaces, it still opens', async (t) => {
  const { node } = nodeWith(t, [hns])
  const interfaces = () => {
    throw new Error('not told in this test')
  }
  const { said } = await opened({ ...node, interfaces, environment: {} })
  t.same(said, [hns])
})

t.test('elsewhere the mode names the system that it is for', async (t) => {
  const { node } = nodeWith(t, [hns])
  t.match(await probeWindows(node), [{ ok: false, what: 'the operating system Windows' }])
})

t.test('a reload leaves what this mode sets for Windows', async (t) => {
  const folder = join(t.testdir({}), 'takeover')
  const quiet = () => undefined
  const log = { debug: quiet, info: quiet, warn: quiet, error: quiet }
  const meter = { count: quiet, gauge: quiet, observe: quiet, forget: quiet }
  const config = configWith({ 'userspace.takeoverFolder': folder, 'userspace.workers': 1 })
  const openLink = () => () => Promise.reject(new Error('no link in this test'))
  const mode = await onAddresses(openLink).create(config, ['IPv4'], { log, meter, resync: quiet })
  t.teardown(() => mode.close())
  mode.reconfigure(config)
  await mode.apply(mode.plan(state([])))
  t.notOk(existsSync(folder), 'nobody can take listeners over')
})
