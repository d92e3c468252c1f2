import { fileURLToPath } from 'node:url'
import { flagsToOptimizeLater } from '../../lib/engine.js'
import { quoted } from '../support/guest.js'
import { program } from '../support/program.js'
import { umlPatience } from '../support/uml.js'

const pathOf = (file: string) => fileURLToPath(new URL(file, import.meta.url))
const words = [process.execPath, ...flagsToOptimizeLater].map(quoted).join(' ')
/** Seconds until a part counts as stuck. The machine shares its processor with other tests. */
const patience = 3600
const node = `TAP_TIMEOUT=${patience} TEST_NODE_PROGRAM=${quoted(program)} ${umlPatience} ${words}`

interface Part {
  readonly name: string
  readonly command: string
}

const insidePart = (name: string): Part => ({
  name: `uml/inside/${name}`,
  command: `${node} ${quoted(pathOf(`./inside/${name}.js`))}`,
})

const conformance: Part = {
  name: 'conformance of ipvs mode',
  command: `${node} ${quoted(pathOf('../conformance/main.js'))} --mode ipvs`,
}

/** Programs that print TAP, one after the other in one machine. */
export const parts: readonly Part[] = [
  conformance,
  ...[
    'trace',
    'playground',
    // These share the machine's first namespace; the others make worlds or a namespace.
    ...['ipvs-mode', 'packets', 'others', 'switching', 'one-port'],
    'takeover',
    'interrupted',
    'confined',
    'flows',
  ].map(insidePart),
]

/**
 * New namespaces start with the kernel's own settings. Otherwise they copy the IPv4 settings of the
 * machine's first namespace, where a mode may have run. With its ARP settings nobody answers for
 * some addresses of later worlds.
 */
const freshNamespaces = 'echo 2 >/proc/sys/net/core/devconf_inherit_init_net'

/** The shell command of the machine. It prints where each part begins and how it ended. */
export const commandOf = (parts: readonly Part[]): string =>
  [
    freshNamespaces,
    ...parts.map(({ name, command }) => `echo '# part ${name}'; ${command}; echo "# end $?"`),
  ].join('\n')
