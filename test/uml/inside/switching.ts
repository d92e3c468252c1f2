/** From ipvs mode to another and back: nothing of the old mode is left. */
import t from 'tap'
import { messageOf } from '../../../lib/errors.js'
import { modeLoaders } from '../../../lib/modes/registry.js'
import { mode } from '../../../lib/modes/ipvs/index.js'
import { cleanLeftovers } from '../../../lib/modes/leftovers.js'
import type { ModeDefinition } from '../../../lib/modes/mode.js'
import type { ModeName } from '../../../lib/config/config.js'
import { states, testConfig } from '../../support/states.js'
import { context, sh, table, web } from './node.js'

const state = states().put(web).take()

async function use(name: ModeName): Promise<void> {
  const definition: ModeDefinition = await modeLoaders[name]()
  const running = await definition.create(testConfig, ['IPv4', 'IPv6'], context)
  await running.apply(running.plan(state))
  // The next mode cleans up when it starts, after this one has ended.
  await running.close()
  await cleanLeftovers(name, context)
}

/** All rules, without counters and times, and sorted. */
const rules = () =>
  sh('iptables-save; ip6tables-save')
    .replace(/^#.*$|\[\d+:\d+\]/gm, '')
    .split('\n')
    .sort()

/** The objects in the kernel that only ipvs mode makes. */
const ipvsOnly = () => ({
  servers: table(),
  sets: sh('ipset list -n'),
  devices: sh('ip -o link').match(/kube-ipvs0/g),
  chains: rules().filter((line) => /IPVS|KUBE-(6-)?CLUSTER-IP/.test(line)),
})

const nothingOfIpvs = { servers: [], sets: '', devices: null, chains: [] }

const refusesNftables = (() => {
  try {
    sh('nft add table ip kpts-try && nft delete table ip kpts-try')
    return false
  } catch (error) {
    const said = messageOf(error).split('\n').slice(1).join(' ').trim()
    return `this kernel has no nf_tables for IPv4 (CONFIG_NF_TABLES_IPV4): ${said}`
  }
})()

for (const other of ['iptables', 'nftables'] as const) {
  const skip = other === 'nftables' ? refusesNftables : false
  await t.test(`L16: switching ${other} and ipvs leaves nothing`, { skip }, async (t) => {
    await use(other)
    const onlyOther = rules()
    t.strictSame(ipvsOnly(), nothingOfIpvs)
    await use('ipvs')
    const onlyIpvs = rules()
    t.notMatch(onlyIpvs.join('\n'), /KUBE-(SVC|SEP|EXT)-|KUBE-EXTERNAL-SERVICES|KUBE-PORTALS/)
    t.equal(table().length, 9)
    await use(other)
    t.strictSame(rules(), onlyOther)
    t.strictSame(ipvsOnly(), nothingOfIpvs)
    await use('ipvs')
    t.strictSame(rules(), onlyIpvs)
    t.equal(table().length, 9)
    await mode.cleanup(context)
    await (await modeLoaders[other]()).cleanup(context)
    t.strictSame(ipvsOnly(), nothingOfIpvs)
    // KUBE-FIREWALL belongs to kubelet too.
    t.notMatch(sh('iptables-save; ip6tables-save'), /KUBE-(?!FIREWALL)/)
  })
}
