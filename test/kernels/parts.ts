import { readCases } from '../conformance/case-file.js'
import { casesFolder } from '../conformance/cases-folder.js'
import { quoted } from '../support/guest.js'
import { bundleOf, type GuestProgram } from '../support/bundles.js'

const start = (program: GuestProgram, flags: readonly string[] = []) =>
  `TAP_TIMEOUT=3000 ${[process.execPath, ...flags, bundleOf(program)].map(quoted).join(' ')}`

/**
 * Flags that switch off the compilers of V8, so that QEMU needs a quarter less processor time. Each
 * of the ten agents of a world would compile for itself, and QEMU must translate compiled code.
 */
const interpreting = ['--no-opt', '--no-sparkplug']

/** The modes in the order in which they run. The last one changes what iptables is. */
export const modes: readonly string[] = [
  'nftables',
  'nftables-by-nft',
  'iptables',
  'ipvs',
  'ebpf',
  'userspace',
  'iptables-legacy',
]

/** Packet cases that differ by kernel: each topic once, and what only real kernels can show. */
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

/** The names of the selected cases as in TAP; they are read once. */
let selectedNames: readonly string[] | undefined

/** Whether these names include all cases of a run without --only. */
export function coversSelection(names: readonly string[]): boolean {
  selectedNames ??= readCases(casesFolder)
    .map(({ topic, name }) => `${topic}: ${name}`.replaceAll('#', '\\#'))
    .filter((name) => selected.some((text) => name.includes(text)))
  return selectedNames.every((name) => names.includes(name))
}

/** Modes whose packets show nothing new: they differ from another mode by the writer only. */
const withoutPackets = ['nftables-by-nft']

/** The programs that test schedulers, weights and draining of IPVS. */
const ofIpvs = ['ipvs-mode', 'packets', 'others'] as const

/** Waits become longer on a slow machine: the factor comes from the time of its boot. */
const patience = 'export CONFORMANCE_PATIENCE=$(( $(cut -d. -f1 /proc/uptime) * 2 + 1 ))'

/**
 * The modules that the kernel requests again and again while a ruleset is written. The probe of
 * nftables causes 74 requests, which take a minute without KVM. So the modules are loaded before,
 * except for the probe, which must see that the kernel loads them.
 */
const modulesOf = {
  nft: 'chain_nat compat ct fib_inet fib_ipv4 fib_ipv6 hash masq nat numgen redir reject_inet reject_ipv4 reject_ipv6',
  xt: 'addrtype bpf comment conntrack MASQUERADE mark nat physdev recent REDIRECT set socket statistic tcpudp TPROXY',
  ip_set: 'bitmap_port hash_ip hash_ipport hash_ipportip hash_ipportnet hash_net',
}
const loadModules = `modprobe -qa ipt_REJECT ip6t_REJECT ${Object.entries(modulesOf)
  .flatMap(([prefix, names]) => names.split(' ').map((name) => `${prefix}_${name}`))
  .join(' ')}`

interface Choice {
  readonly modes: readonly string[]
  readonly only: readonly string[] | undefined
  /** Columns of the table. */
  readonly parts: readonly string[]
}

export function commandFor({ modes, only, parts }: Choice): string {
  const isWanted = (part: string) => parts.includes(part)
  const versions =
    'for tool in nft iptables ipset; do echo "# version $($tool --version | head -n 1)"; done'
  const inModes = `${start('test/kernels/inside/modes.js')} ${quoted(parts.join())} ${modes.join(' ')}`
  return [
    patience,
    versions,
    ...(isWanted('probe') && only === undefined ? [] : [loadModules]),
    ...(only === undefined && parts.some((part) => part !== 'packets') ? [inModes] : []),
    ...(isWanted('packets') ? packetsOf(modes, only) : []),
  ].join('\n')
}

/**
 * The cases that a run plays. Programs for IPVS are chosen by their names, not by the text of
 * cases.
 */
function packetsOf(modes: readonly string[], only: Choice['only']): readonly string[] {
  const isOfIpvs = (text: string) => ofIpvs.some((file) => file === text)
  const words = (only ?? selected).filter((text) => !isOfIpvs(text))
  const chosen = words.map((text) => `--only ${quoted(text)}`).join(' ')
  const play = (mode: string, command: string) =>
    `echo ${quoted(`# packets of ${mode}`)}; ${command}`
  const suite = (mode: string) =>
    play(
      mode,
      `${start('test/conformance/main.js', interpreting)} --jobs 1 --mode ${mode} ${chosen}`,
    )
  const inside = (file: (typeof ofIpvs)[number]) =>
    play('ipvs', start(`test/uml/inside/${file}.js`))
  const files = ofIpvs.filter((file) => only === undefined || only.includes(file))
  return [
    ...(words.length > 0 ? modes.filter((mode) => !withoutPackets.includes(mode)).map(suite) : []),
    ...(modes.includes('ipvs') ? files.map(inside) : []),
  ]
}
