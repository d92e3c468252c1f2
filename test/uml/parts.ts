import { flagsToOptimizeLater } from '../../lib/engine.js'
import { bundleOf, ofUml, type GuestProgram } from '../support/bundles.js'
import { quoted } from '../support/guest.js'
import { program } from '../support/program.js'
import { umlPatience } from '../support/uml.js'

const words = [process.execPath, ...flagsToOptimizeLater].map(quoted).join(' ')
/** Seconds until a part counts as stuck. The machine shares its processor with other tests. */
const patience = 3600
const node = `TAP_TIMEOUT=${patience} TEST_NODE_PROGRAM=${quoted(program)} ${umlPatience} ${words}`

interface Part {
  readonly name: string
  readonly command: string
}

const start = (program: GuestProgram) => `${node} ${quoted(bundleOf(program))}`

/** Programs that print TAP, one after the other in one machine. */
export const parts: readonly Part[] = [
  { name: 'conformance of ipvs mode', command: `${start('test/conformance/main.js')} --mode ipvs` },
  ...ofUml.map((name) => ({
    name: `uml/inside/${name}`,
    command: start(`test/uml/inside/${name}.js`),
  })),
]

/**
 * New namespaces start with the kernel's own settings. Otherwise they copy the IPv4 settings of the
 * machine's first namespace, where a mode may have run. With its ARP settings nobody answers for
 * some addresses of later worlds.
 */
const freshNamespaces = 'echo 2 >/proc/sys/net/core/devconf_inherit_init_net'

/**
 * Modules that the kernel would request one after the other, each by two programs. Those of IPVS are
 * not among them, because the mode sees to it that they are loaded.
 */
const loadModules = `modprobe -a ${[
  'veth dummy bridge sctp nf_conntrack_netlink xt_set ip_set_bitmap_port',
  'ip_set_hash_ip ip_set_hash_ipport ip_set_hash_ipportip ip_set_hash_ipportnet',
  'iptable_filter iptable_nat iptable_mangle ip6table_filter ip6table_nat ip6table_mangle',
  'xt_addrtype xt_comment xt_conntrack xt_mark xt_MASQUERADE ipt_REJECT ip6t_REJECT',
].join(' ')}`

/** The shell command of the machine. It prints where each part begins and how it ended. */
export const commandOf = (parts: readonly Part[]): string =>
  [
    freshNamespaces,
    loadModules,
    ...parts.map(({ name, command }) => `echo '# part ${name}'; ${command}; echo "# end $?"`),
  ].join('\n')
