import { fileURLToPath } from 'node:url'
import { quoted, umlPatience } from '../support/uml.js'

const pathOf = (file: string) => fileURLToPath(new URL(file, import.meta.url))
const node = `TAP_TIMEOUT=300 ${quoted(process.execPath)} --enable-source-maps`

/** The first few share the machine's first namespace, the others bring a world. */
const inside = [
  ...['ipvs-mode', 'packets', 'others', 'switching', 'one-port'],
  ...['takeover', 'trace', 'playground'],
]

/** What runs in User Mode Linux: programs that print TAP, one after the other in one machine. */
const parts: readonly { readonly name: string; readonly command: string }[] = [
  ...inside.map((name) => ({
    name: `uml/inside/${name}`,
    command: `${node} ${quoted(pathOf(`./inside/${name}.js`))}`,
  })),
  {
    name: 'conformance of ipvs mode',
    command: `${umlPatience} ${node} ${quoted(pathOf('../conformance/main.js'))} --mode ipvs`,
  },
]

export const partNames: readonly string[] = parts.map(({ name }) => name)

/**
 * New namespaces copy the IPv4 settings of the machine's first one, where a part may have run a mode:
 * with its ARP settings nobody would answer for some addresses of the worlds after it.
 */
const freshNamespaces = 'echo 2 >/proc/sys/net/core/devconf_inherit_init_net'

/** For a shell: says where each part begins and how it ended. */
export const partsCommand: string = [
  freshNamespaces,
  ...parts.map(({ name, command }) => `echo '# part ${name}'; ${command}; echo "# end $?"`),
].join('\n')
