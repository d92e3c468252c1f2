import { execSync } from 'node:child_process'
import { attachedPrograms } from '../../../lib/kernel/bpf/attached.js'
import { openSystemCalls } from '../../../lib/kernel/bpf/system-calls.js'
import { mountOf, openCgroup } from '../../../lib/kernel/cgroup.js'

/** The output of a program, or nothing if this kernel or machine lacks what it shows. */
function shown(command: string): string {
  try {
    return execSync(command, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] })
  } catch {
    return ''
  }
}

const sorted = (text: string, separator: RegExp | string = '\n') =>
  text
    .split(separator)
    .map((line) => line.trim())
    .filter((line) => line !== '')
    .sort()

/** The rules without counters and without the chain that kubelet has too. */
const rulesOf = (backend: string) =>
  sorted(shown(`iptables-${backend}-save; ip6tables-${backend}-save`))
    .filter((line) => /^-A|^:KUBE-/.test(line) && !line.includes('KUBE-FIREWALL'))
    .map((line) => line.replace(/\[\d+:\d+\]/, ''))

function tables(): readonly string[] {
  return sorted(shown('nft list tables'))
    .filter((table) => table.includes('kube-proxy'))
    .flatMap((table) => {
      const text = shown(`nft list ${table}`).replaceAll(/packets \d+ bytes \d+/g, '')
      return sorted(text, /[\n,{}]/).map((line) => `${table}: ${line}`)
    })
}

function socketPrograms(): number {
  if (mountOf('cgroup2') === undefined) return 0
  const cgroup = openCgroup('')
  try {
    return attachedPrograms(openSystemCalls(), cgroup.fd, 'connect4').length
  } catch {
    return 0
  } finally {
    cgroup.close()
  }
}

/** Everything that any mode writes, sorted, so that the order of writing does not matter. */
export function nodeContents() {
  return {
    rules: rulesOf('nft'),
    legacyRules: rulesOf('legacy'),
    tables: tables(),
    sets: sorted(shown('ipset save')).filter((line) => !line.startsWith('create')),
    names: sorted(shown('ipset list -n')),
    servers: sorted(shown('ipvsadm -Sn')),
    addresses: sorted(shown('ip -o -br address show dev kube-ipvs0').replace(/^\S+ +\S+/, ''), ' '),
    devices: shown('ip -o link').match(/kube-ipvs0/g)?.length ?? 0,
    socketPrograms: socketPrograms(),
    pins: sorted(shown('ls /sys/fs/bpf')),
  }
}
