import { placeText } from '../../lib/kernel/place.js'
import { connectPlace } from '../../lib/modes/ebpf/names.js'
import { drainChain } from '../../lib/modes/userspace/names.js'
import type { Stage } from './stage.js'

/** Which of our rules are on a node without a daemon. */

interface Differences {
  readonly families: readonly {
    readonly family: 'IPv4' | 'IPv6'
    readonly differences: readonly { readonly where: string; readonly expected?: string }[]
  }[]
}

/** A part that the kernel replaces at once: a table of a family. */
interface Unit {
  readonly name: string
  readonly stands: boolean
  readonly missing: readonly string[]
}

/** The units that are there in part. Each must be complete or absent. */
export async function torn(stage: Stage): Promise<string[]> {
  const units = await unitsOf(stage)
  return units
    .filter(({ stands, missing }) => stands && missing.length > 0)
    .map(({ name, missing }) => `${name} stands, but: ${missing.slice(0, 5).join('; ')}`)
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

async function unitsOf(stage: Stage): Promise<readonly Unit[]> {
  const { mode } = stage
  const flags = ['--mode', mode, ...stage.sourceFlags, '--node', 'node-1', '--json']
  const { stdout, stderr } = await stage.kubeProxy('diff', ...flags)
  if (stdout === '') throw new Error(`diff: ${stderr}`)
  const { families } = JSON.parse(stdout) as Differences
  const units = families.map(async ({ family, differences }): Promise<readonly Unit[]> => {
    const places = differences.map(({ where }) => where)
    if (mode === 'nftables' || mode === 'ebpf') {
      const table = `${family === 'IPv4' ? 'ip' : 'ip6'} kube-proxy`
      const { code } = await stage.world.exec('node', ['nft', 'list', 'table', ...table.split(' ')])
      return [
        {
          name: `table ${table}`,
          stands: code === 0,
          missing: differences.filter(isOfFirstSync).map(({ where }) => where),
        },
      ]
    }
    const program = family === 'IPv4' ? 'iptables-save' : 'ip6tables-save'
    return Promise.all(
      ['nat', 'filter', 'mangle'].map(async (table) => {
        const saved = await stage.world.exec('node', [program, '-t', table])
        return {
          name: `${family} table ${table}`,
          stands: chainsIn(saved.stdout).some((chain) => chain !== mayStandAlone),
          missing: places.filter((where) => where.startsWith(`${table} `)),
        }
      }),
    )
  })
  return (await Promise.all(units)).flat()
}
