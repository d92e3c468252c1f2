import type { CaseWorld } from './case-world.js'

/** The commands that remove the rules of every mode. Those of missing programs may fail. */
const commands: readonly (readonly string[])[] = [
  ['nft', 'delete', 'table', 'ip', 'kube-proxy'],
  ['nft', 'delete', 'table', 'ip6', 'kube-proxy'],
  ...['iptables', 'ip6tables', 'iptables-legacy', 'ip6tables-legacy'].flatMap((tool) =>
    ['nat', 'filter', 'mangle'].flatMap((table) => [
      [tool, '-w', '-t', table, '-F'],
      [tool, '-w', '-t', table, '-X'],
    ]),
  ),
  ['ipvsadm', '-C'],
]

/** Deletes the rules of the node, as a careless administrator or a restarting firewall does. */
export async function flushRules(world: CaseWorld): Promise<void> {
  for (const command of commands) await world.exec('node', command).catch(() => undefined)
}
