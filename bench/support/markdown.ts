import { keepsTarget, valueText, type BenchResult, type BenchResults } from './results.js'

/** What one benchmark found, or why it found nothing. */
export interface AreaReport {
  readonly area: string
  readonly date: string
  readonly seconds: number
  /** The load of the machine at the beginning. Above 1, other programs were busy, too. */
  readonly load: number
  readonly results: BenchResults
  readonly failure?: string
}

/** Facts about the machine of the measurements. */
export type Machine = Readonly<Record<string, string>>

const about: Readonly<Record<string, string>> = {
  apiserver: 'The embedded API server',
  daemon: 'The whole program, from the API to the packet',
  'dark-endpoint': 'Requests lost while one of ten endpoints is dark',
  ebpf: 'ebpf mode',
  flows: 'Counting connections',
  health: 'Health checks of endpoints',
  iptables: 'iptables mode',
  ipvs: 'ipvs mode',
  nftables: 'nftables mode',
  nodes: 'Many nodes after an outage of the API, simulated',
  page: 'The page, and what its readers cost',
  proxies: 'One API server and many proxies',
  'stale-udp': 'UDP clients of an endpoint that left',
  state: 'The state, from objects to decisions',
  userspace: 'userspace mode, beside HAProxy',
}

/** docs/benchmarks.md. */
export function benchmarksMarkdown(machine: Machine, reports: readonly AreaReport[]): string {
  return [
    '# Benchmarks\n',
    '<!-- Written by `npm run bench`; run it again rather than change it here. -->\n',
    'Results of `npm run bench` on the machine below; each part says when it ran. Absolute numbers',
    'drift with the machine, also within a day; ratios do so much less. `npm run bench -- --peer NAME=COMMAND` measures any other proxy in the same run:\n',
    '```sh',
    "npm run bench -- daemon --peer 'go=/usr/local/bin/kube-proxy --kubeconfig {kubeconfig} --hostname-override {node} --proxy-mode {mode}'",
    '```\n',
    '| machine | |\n| --- | --- |',
    ...Object.entries(machine).map(([what, value]) => `| ${what} | ${cell(value)} |`),
    '',
    summary(reports),
    ...reports.map(section),
  ].join('\n')
}

function summary(reports: readonly AreaReport[]): string {
  const kept = reports.flatMap(({ results }) => results.map(keepsTarget))
  const count = (wanted: boolean) => kept.filter((one) => one === wanted).length
  return `Of ${count(true) + count(false)} targets, ${count(true)} are kept.\n`
}

function section({ area, date, seconds, load, results, failure }: AreaReport): string {
  const head = `## ${about[area] ?? area}\n\n\`npm run bench -- ${area}\`: ${seconds} s on ${date.slice(0, 10)}, load ${load.toFixed(1)} when it began.\n`
  if (failure !== undefined) return `${head}\nNothing was measured: ${cell(failure)}\n`
  if (results.length === 0) return `${head}\nLeft out here; the run said why.\n`
  const lines = results.map(row)
  return `${head}\n| what | value | target | kept | note |\n| --- | ---: | ---: | --- | --- |\n${lines.join('\n')}\n`
}

function row(result: BenchResult): string {
  const { name, value, unit, target, note } = result
  const keeps = keepsTarget(result)
  const kept = keeps === undefined ? '' : keeps ? 'yes' : '**no**'
  const limit = target === undefined ? '' : `${target} ${unit}`
  return `| ${cell(name)} | ${valueText(value)} ${unit} | ${limit} | ${kept} | ${cell(note ?? '')} |`
}

/** Keeps text in one cell, because a peer may have printed it. */
function cell(text: string): string {
  return text.replace(/[\r\n|]+/g, ' ').slice(0, 300)
}
