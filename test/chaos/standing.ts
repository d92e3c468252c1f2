import { placeText } from '../../lib/kernel/place.js'
import { connectPlace } from '../../lib/modes/ebpf/names.js'
import { drainChain } from '../../lib/modes/userspace/names.js'
import { ipFamilies, type IpFamily } from '../../lib/state/ip.js'
import type { Stage } from './stage.js'

/** Which of our rules are on a node without a daemon. */

interface Differences {
  readonly families: readonly {
    readonly family: IpFamily
    readonly differences: readonly { readonly where: string; readonly expected?: string }[]
  }[]
}

/** A part that the kernel replaces at once: a table of a family. */
interface Unit {
  readonly name: string
  readonly family: IpFamily
  /** Whether a difference is in this table. */
  has(difference: Differences['families'][number]['differences'][number]): boolean
}

/** The units that are there in part. Each must be complete or absent. */
export async function torn(stage: Stage): Promise<string[]> {
  const units = await standing(stage)
  // To compare is dearest where nothing stands, and then nothing is there in part.
  if (units.length === 0) return []
  const flags = ['--mode', stage.mode, ...stage.sourceFlags, '--node', 'node-1', '--json']
  const { stdout, stderr } = await stage.diff(...flags)
  if (stdout === '') throw new Error(`diff: ${stderr}`)
  const compared = (JSON.parse(stdout) as Differences).families
  return units.flatMap((unit) => {
    const missing = compared
      .filter(({ family }) => family === unit.family)
      .flatMap(({ differences }) =>
        differences.filter((each) => unit.has(each)).map(({ where }) => where),
      )
    return missing.length === 0
      ? []
      : [`${unit.name} stands, but: ${missing.slice(0, 5).join('; ')}`]
  })
}

/** Our chains in what iptables-save prints. KUBE-FIREWALL belongs to kubelet too, so it stays. */
const chainsIn = (saved: string): readonly string[] =>
  (saved.match(/^:KUBE-\S+/gm) ?? []).filter((chain) => chain !== ':KUBE-FIREWALL')

/** It keeps open connections translated while the rules are gone. It leads nowhere. */
const mayStandAlone = `:${drainChain}`

/** The names of all our objects in the kernel. */
export async function remains({ world }: Stage): Promise<readonly string[]> {
  const tables = await world.exec('node', ['nft', 'list', 'tables'])
  const ours = tables.stdout.split('\n').filter((line) => line.endsWith('kube-proxy'))
  const chains = ['iptables-save', 'ip6tables-save'].map(async (program) => {
    return chainsIn((await world.exec('node', [program])).stdout)
  })
  const links = await world.exec('node', ['ip', '-o', 'link', 'show', 'kube-ipvs0'])
  const sets = await world.exec('node', ['ipset', 'list', '-n'])
  const ofIpvs = [
    ...(links.code === 0 ? ['kube-ipvs0'] : []),
    ...(sets.stdout.match(/^KUBE-\S+/gm) ?? []),
  ]
  return [...ours, ...(await Promise.all(chains)).flat(), ...ofIpvs]
}

/**
 * Whether a difference counts in a first sync. The programs at sockets switch to complete tables,
 * so they are never there in part. The rule for ServiceCIDRs may come later, because no start waits
 * long for them.
 */
const isOfFirstSync = ({ where, expected = '' }: { where: string; expected?: string }) =>
  where !== placeText(connectPlace) && !expected.includes('Drop traffic to unallocated ClusterIPs')

/** The units of which the kernel has anything. */
async function standing({ mode, world }: Stage): Promise<readonly Unit[]> {
  if (mode === 'nftables' || mode === 'ebpf') {
    const { stdout } = await world.exec('node', ['nft', 'list', 'tables'])
    return ipFamilies
      .map((family): Unit => {
        const name = `table ${family === 'IPv4' ? 'ip' : 'ip6'} kube-proxy`
        return { name, family, has: isOfFirstSync }
      })
      .filter(({ name }) => stdout.split('\n').includes(name))
  }
  const units = ipFamilies.map(async (family) => {
    const program = family === 'IPv4' ? 'iptables-save' : 'ip6tables-save'
    const { stdout } = await world.exec('node', [program])
    return stdout.split(/^\*/m).flatMap((saved): Unit[] => {
      const [table = ''] = saved.split('\n', 1)
      const stands = chainsIn(saved).some((chain) => chain !== mayStandAlone)
      const has: Unit['has'] = ({ where }) => where.startsWith(`${table} `)
      return stands ? [{ name: `${family} table ${table}`, family, has }] : []
    })
  })
  return (await Promise.all(units)).flat()
}
