import { fileURLToPath } from 'node:url'
import { flagsToOptimizeLater } from '../../lib/daemon/engine.js'
import { quoted } from '../support/guest.js'
import { umlPatience } from '../support/uml.js'

const pathOf = (file: string) => fileURLToPath(new URL(file, import.meta.url))
const words = [process.execPath, ...flagsToOptimizeLater].map(quoted).join(' ')
const node = `TAP_TIMEOUT=300 ${umlPatience} ${words}`

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

export interface UmlMachine {
  readonly name: string
  /** Programs that print TAP, one after the other. */
  readonly parts: readonly Part[]
}

/** One machine has one processor, so two of about the same length end in half the time. */
export const machines: readonly UmlMachine[] = [
  { name: 'worlds', parts: [conformance, insidePart('trace'), insidePart('playground')] },
  {
    name: 'modes',
    // The first few share the machine's first namespace, the last four bring worlds or a namespace.
    parts: [
      'ipvs-mode',
      'packets',
      'others',
      'switching',
      'one-port',
      'takeover',
      'interrupted',
      'confined',
      'flows',
    ].map(insidePart),
  },
]

/**
 * New namespaces copy the IPv4 settings of the machine's first one, where a part may have run a mode:
 * with its ARP settings nobody would answer for some addresses of the worlds after it.
 */
const freshNamespaces = 'echo 2 >/proc/sys/net/core/devconf_inherit_init_net'

/** For a shell: says where each part begins and how it ended. */
export function commandOf({ parts }: UmlMachine): string {
  return [
    freshNamespaces,
    ...parts.map(({ name, command }) => `echo '# part ${name}'; ${command}; echo "# end $?"`),
  ].join('\n')
}
