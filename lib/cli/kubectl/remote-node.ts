import { ConfigError, SourceError } from '../../errors.js'
import { asArray, asObject, asString } from '../../state/json.js'
import { askDaemon, failingEndpoints, type SeenNode } from '../seen-node.js'
import { collect } from '../../sources/collected-states.js'
import { modeNames } from '../../modes/registry.js'
import { ipFamilies, parseIp } from '../../state/ip.js'
import { selectionsFor } from '../../sources/api-server.js'
import { trackerSettings } from '../../config/tracker-settings.js'
import type { Kubectl } from './kubectl.js'
import type { RemoteProxy } from './proxies.js'
import { selectorsOf, type Selection } from '../../sources/object-requests.js'

/**
 * A node as its proxy sees it: with the configuration and mode of the proxy, and with the objects
 * that the API server shows to the caller.
 */
export async function seeRemoteNode(kubectl: Kubectl, proxy: RemoteProxy): Promise<SeenNode> {
  const { config, mode: name } = await askDaemon(proxy)
  const mode = modeNames.find((each) => each === name)
  if (!mode)
    throw new ConfigError(`${proxy.name} runs a mode unknown here, ${JSON.stringify(name)}`)
  const nodeName = proxy.node
  const [failing, ...lists] = await Promise.all([
    // An older proxy has no such page.
    proxy.get('/failing-endpoints').catch(() => ''),
    ...selectionsFor(nodeName).map(async (selection) => ({
      selection,
      items: await itemsOf(kubectl, selection),
    })),
  ])
  const node = lists.find(({ selection }) => selection.kind === 'Node')?.items[0]
  const settings = trackerSettings(config, mode, { nodeName, families: ipFamilies })
  const collected = collect(settings, addressesOf(node), failingEndpoints(failing))
  for (const { selection, items } of lists) {
    for (const item of items) collected.sink.upsert(selection.kind, item)
    collected.sink.synced(selection.kind)
  }
  return { ...collected.taken(), config, mode, nodeName }
}

async function itemsOf(kubectl: Kubectl, selection: Selection): Promise<readonly unknown[]> {
  const { path, isOptional } = selection
  const query = new URLSearchParams(selectorsOf(selection)).toString()
  try {
    const list = asObject(await kubectl.object(query === '' ? path : `${path}?${query}`))
    return asArray(list?.items) ?? []
  } catch (error) {
    if (isOptional === true && error instanceof SourceError) return []
    throw error
  }
}

/** The addresses at which node ports answer. The API does not list the node's other addresses. */
function addressesOf(node: unknown): readonly string[] {
  const status = asObject(asObject(node)?.status)
  return (asArray(status?.addresses) ?? []).flatMap((item) => {
    const ip = parseIp(asString(asObject(item)?.address) ?? '')
    return ip ? [ip.text] : []
  })
}
