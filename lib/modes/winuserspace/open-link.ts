import { networkInterfaces, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { ifPossible, messageOf } from '../../errors.js'
import { runCommand } from '../../kernel/command.js'
import type { LinkAddresses } from '../../kernel/link-addresses.js'
import { AddressJournal } from '../../kernel/windows/address-journal.js'
import {
  canBind,
  WindowsAddresses,
  type AddressWriter,
} from '../../kernel/windows/windows-addresses.js'
import { loadIpHelper, type IpHelper } from '../../kernel/windows/ip-helper.js'
import { openIpHelperWriter } from '../../kernel/windows/ip-helper-writer.js'
import { openNetshWriter } from '../../kernel/windows/netsh-writer.js'
import type { Log } from '../mode.js'

/** The interface that kube-proxy 1.25 put the addresses of Services on (WU08). */
const hnsInterface = 'vEthernet (HNS Internal NIC)'

/** Below %ProgramData%: the list of the addresses that this mode has added. */
const journalName = ['kube-proxy-ts', 'addresses.json'] as const

/** The parts of Windows that this mode calls. */
export interface WindowsNode {
  readonly loadIpHelper: () => Promise<IpHelper>
  readonly interfaces: typeof networkInterfaces
  readonly run: typeof runCommand
  readonly environment: Readonly<Record<string, string | undefined>>
  readonly canBind: (ip: string) => Promise<boolean>
}

export const windowsNode: WindowsNode = {
  ...{ loadIpHelper, run: runCommand, environment: process.env, canBind },
  interfaces: networkInterfaces,
}

/** Opens the interface that the settings name. iphlpapi.dll or netsh changes its addresses. */
export async function openLink(
  wanted: string,
  log: Log,
  node: WindowsNode = windowsNode,
): Promise<LinkAddresses> {
  const { environment } = node
  const openWriter = await writerOpener(node, log)
  const names = wanted === '' ? [hnsInterface, loopbackOf(node)] : [wanted]
  const link = names.find((name) => openWriter(name) !== undefined) ?? names[0] ?? ''
  log.info({ interface: link }, 'addresses of Services go on this interface')
  return new WindowsAddresses({
    ...{ link, openWriter, canBind: node.canBind },
    journal: new AddressJournal(join(environment['ProgramData'] ?? tmpdir(), ...journalName)),
    sleep: (ms) => sleep(ms),
  })
}

async function writerOpener(
  node: WindowsNode,
  log: Log,
): Promise<(link: string) => AddressWriter | undefined> {
  try {
    const helper = await node.loadIpHelper()
    return (link) => openIpHelperWriter(helper, link)
  } catch (error) {
    log.warn({ reason: messageOf(error) }, 'addresses are changed by netsh, which is slower')
    const { run, environment } = node
    const program = join(environment['SystemRoot'] ?? 'C:\\Windows', 'System32', 'netsh.exe')
    const interfaces = () => node.interfaces()
    return (link) =>
      namesOf(node).includes(link) ? openNetshWriter(link, { run, program, interfaces }) : undefined
  }
}

/** The name of the loopback interface. Where Windows does not tell it, the English name. */
function loopbackOf(node: WindowsNode): string {
  const found = Object.entries(readInterfaces(node)).find(([, infos]) =>
    infos?.some(({ address }) => address === '127.0.0.1'),
  )
  return found?.[0] ?? 'Loopback Pseudo-Interface 1'
}

const namesOf = (node: WindowsNode) => Object.keys(readInterfaces(node))

const readInterfaces = ({ interfaces }: WindowsNode) => ifPossible(interfaces) ?? {}
