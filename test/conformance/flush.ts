import type { CaseWorld } from './case-world.js'

/** Removes the rules of every mode. A program that the node does not have does not matter. */
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

/** Deletes all rules of the node, as a careless administrator or a restarting firewall does. */
export async function flushRules(world: CaseWorld): Promise<void> {
  for (const command of commands) await world.exec('node', command).catch(() => undefined)
}
