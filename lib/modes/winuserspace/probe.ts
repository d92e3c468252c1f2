import { messageOf } from '../../errors.js'
import type { Finding } from '../mode.js'
import { missingSystem } from '../systems.js'
import { windowsNode, type WindowsNode } from './open-link.js'

/** Nothing is required: somebody else may have added the addresses to this machine already. */
export async function probeWindows(node: WindowsNode = windowsNode): Promise<readonly Finding[]> {
  const elsewhere = missingSystem('winuserspace')
  if (elsewhere) return [elsewhere]
  return [await probeIpHelper(node), probeInterfaces(node)]
}

async function probeIpHelper({ loadIpHelper }: WindowsNode): Promise<Finding> {
  const need = { what: 'iphlpapi.dll, for addresses of Services', required: false }
  try {
    await loadIpHelper()
    return { ...need, ok: true, seen: 'can be called', fix: '' }
  } catch (error) {
    return { ...need, ok: false, seen: messageOf(error), fix: 'netsh is used instead' }
  }
}

function probeInterfaces({ interfaces }: WindowsNode): Finding {
  const need = { what: 'interfaces of this node', required: false }
  try {
    const names = Object.keys(interfaces())
    return { ...need, ok: true, seen: names.join(', '), fix: '' }
  } catch (error) {
    const fix = 'UDP node ports then listen on every address'
    return { ...need, ok: false, seen: messageOf(error), fix }
  }
}
