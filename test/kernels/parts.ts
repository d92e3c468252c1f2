import { quoted } from '../support/guest.js'
import { bundleOf, type GuestProgram } from './bundles.js'

const start = (program: GuestProgram) =>
  `TAP_TIMEOUT=3000 ${quoted(process.execPath)} ${quoted(bundleOf(program))}`

/** As the suite knows them, in the order in which they run: the last one changes what iptables is. */
export const modes = [
  'nftables',
  'nftables-by-nft',
  'iptables',
  'ipvs',
  'ebpf',
  'userspace',
  'iptables-legacy',
] as const

/** Packet cases that differ by kernel; each topic once, and what only real kernels can show. */
const selected = [
  'S21 e2e service.go:2229',
  'S21: UDP: with affinity',
  'S01 S07: every client',
  'S01: UDP: every client',
  'S28: SCTP',
  'S24: a pod that reaches itself through its Service',
  'S23: a node port answers on every',
  'S23: UDP: a node port answers on every',
  'IT34 US22: a node port answers on localhost',
  'S12 S13: source ranges',
  'S16 e2e service.go:2528',
  'S17 e2e service.go:2771',
  'S06 e2e dual_stack.go:430',
  'CT01 CT15 e2e conntrack.go:140',
  'E11: an established TCP connection',
  'L18: established connections',
]

/** Cases of the suite that show nothing of their own with another writer or data path. */
const withoutPackets = ['nftables-by-nft']

/** Schedulers, weights and draining of IPVS. */
const ofIpvs = ['ipvs-mode', 'packets', 'others'] as const

/** The first waits as much longer as this machine is slower: a quiet one boots in five seconds. */
const patience = 'export CONFORMANCE_PATIENCE=$(( $(cut -d. -f1 /proc/uptime) * 2 + 1 ))'

export function commandFor(choice: {
  readonly modes: readonly string[]
  readonly only: readonly string[] | undefined
  /** Columns of the table. */
  readonly parts: readonly string[]
}): string {
  const words = (choice.only ?? selected).map((text) => `--only ${quoted(text)}`).join(' ')
  const suite = (mode: string) =>
    `echo ${quoted(`# packets of ${mode}`)}; ${start('test/conformance/main.js')} --jobs 1 --mode ${mode} ${words}`
  const inside = (file: (typeof ofIpvs)[number]) =>
    `echo ${quoted(`# packets of ipvs`)}; ${start(`test/uml/inside/${file}.js`)}`
  const packets = choice.modes.filter((mode) => !withoutPackets.includes(mode)).map(suite)
  const schedulers = choice.modes.includes('ipvs') ? ofIpvs.map(inside) : []
  if (choice.only !== undefined) return [patience, ...packets].join('\n')
  const all = `${start('test/kernels/inside/modes.js')} ${quoted(choice.parts.join())} ${choice.modes.join(' ')}`
  const versions =
    'for tool in nft iptables ipset; do echo "# version $($tool --version | head -n 1)"; done'
  const rest = choice.parts.includes('packets') ? [...packets, ...schedulers] : []
  return [patience, versions, all, ...rest].join('\n')
}
