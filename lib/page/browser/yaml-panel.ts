import { button, byId, element, drawIfChanged, keyed, updateChildren } from './element.js'
import { link } from './link.js'
import { send } from './controls.js'
import type { ObjectLine, ServiceLine, View } from '../view.js'

let chosen: ObjectLine | undefined

/** The objects as YAML, the Services to choose from, and the same things on a command line. */
export function showObjects(view: View): void {
  byId('yaml-card').hidden = view.objects.length === 0
  drawIfChanged('objects', view.objects, () => {
    const isFirst = chosen === undefined
    chosen ??= objectOf(view) ?? view.objects[0]
    const options = view.objects.map((line, index) => {
      const option = document.createElement('option')
      option.value = String(index)
      option.textContent = `${line.kind} ${line.namespace === '' ? '' : `${line.namespace}/`}${line.name}`
      return option
    })
    const box = byId('object')
    box.replaceChildren(...options)
    // None, if the chosen one is gone: a list would show its first line, which could not be chosen then.
    if (box instanceof HTMLSelectElement) box.selectedIndex = view.objects.findIndex(isChosen)
    objects = view.objects
    if (isFirst) void show(chosen)
  })
  const wanted = filterText()
  const isDrawn =
    drawn.services === view.services && drawn.shown === view.service.name && drawn.wanted === wanted
  drawn = { services: view.services, shown: view.service.name, wanted }
  if (!isDrawn) drawServices(view, wanted)
  const lines = [
    ...(view.kubeconfig === '' ? [] : [`export KUBECONFIG=${view.kubeconfig}`]),
    view.kubectl,
  ]
  drawIfChanged('kubectl', lines, () => byId('kubectl').replaceChildren(lines.join('\n')))
}

let objects: readonly ObjectLine[] = []
/** What the list of Services shows. It may be long, so it is compared by reference. */
let drawn: {
  readonly services: readonly ServiceLine[]
  readonly shown: string
  readonly wanted: string
} = { services: [], shown: '', wanted: '' }
/** More rows make the page slow, and nobody reads them. */
const rowsMax = 200

/** The Service that the rest of the page shows. */
function objectOf({ objects: all, service }: View): ObjectLine | undefined {
  return all.find(
    ({ kind, namespace, name }) => kind === 'Service' && `${namespace}/${name}` === service.name,
  )
}

function isChosen({ kind, namespace, name }: ObjectLine): boolean {
  return kind === chosen?.kind && namespace === chosen.namespace && name === chosen.name
}

async function show(line: ObjectLine | undefined): Promise<void> {
  const box = byId('yaml')
  if (!line || !(box instanceof HTMLTextAreaElement)) return
  chosen = line
  const before = box.value
  const text = await link().yaml(line)
  // The reader may have chosen or typed something meanwhile, which is newer than this answer.
  if (text !== undefined && chosen === line && box.value === before) box.value = text
  byId('yaml-said').textContent = text === undefined ? 'it cannot be read; is it gone?' : ''
  const resource = line.kind.toLowerCase()
  const namespace =
    line.namespace === '' || line.namespace === 'default' ? '' : ` -n ${line.namespace}`
  byId('yaml-kubectl').textContent = `kubectl get ${resource} ${line.name}${namespace} -o yaml`
}

function filterText(): string {
  const box = byId('filter')
  return box instanceof HTMLInputElement ? box.value.trim().toLowerCase() : ''
}

function drawServices({ services, service }: View, wanted: string): void {
  byId('services-count').textContent = String(services.length)
  for (const id of ['filter', 'skip-services']) byId(id).hidden = services.length < 8
  const found = services.filter(({ key, clusterIp, note = '' }) =>
    `${key} ${clusterIp} ${note}`.toLowerCase().includes(wanted),
  )
  const ranks: ServiceLine[][] = [[], [], [], []]
  for (const line of found) ranks[rankOf(line, wanted)]?.push(line)
  const lines = ranks.flat()
  const rows = lines.slice(0, rowsMax).map((line) => serviceRow(line, line.key === service.name))
  const left = lines.length - rows.length
  const more = left > 0 ? [element('li', 'hint', `and ${left} more; the filter finds them`)] : []
  updateChildren(byId('services'), ...rows, ...more)
}

/**
 * A long list shows what comes first: the very name or address that is looked for, Services that
 * the kernel lacks, and names that begin so.
 */
function rankOf({ key, clusterIp, note }: ServiceLine, wanted: string): number {
  const names = [key, key.slice(key.indexOf('/') + 1), ...clusterIp.split(', ')]
  if (names.some((name) => name === wanted || name.startsWith(`${wanted}:`))) return 0
  if (note !== undefined) return 1
  return names.some((name) => name.startsWith(wanted)) ? 2 : 3
}

function serviceRow({ key, type, clusterIp, ports, note }: ServiceLine, isShown: boolean): Node {
  const one = button('', () => void send({ do: 'select', service: key }))
  one.append(
    element('span', 'name', key.replace(/^default\//, '')),
    element('span', 'soft', `${type} ${clusterIp} ${ports}`),
    ...(note === undefined ? [] : [element('span', 'pending', note)]),
  )
  one.setAttribute('aria-pressed', String(isShown))
  return keyed(key, element('li', '', keyed(key, one)))
}

/** Called once. */
export function connectObjects(latest: () => View | undefined): void {
  const box = byId('object')
  box.addEventListener('change', () => {
    if (box instanceof HTMLSelectElement) void show(objects[Number(box.value)])
  })
  byId('yaml-read').addEventListener('click', () => void show(chosen))
  byId('yaml-apply').addEventListener('click', () => {
    const text = byId('yaml')
    if (!(text instanceof HTMLTextAreaElement)) return
    void send({ do: 'apply', yaml: text.value }).then(async (isFine) => {
      if (isFine) await show(chosen)
      byId('yaml-said').textContent = isFine ? 'applied' : 'refused, see the top of the page'
    })
  })
  byId('skip-services').addEventListener('click', () => byId('services-end').focus())
  byId('filter').addEventListener('input', () => {
    const view = latest()
    if (view) showObjects(view)
  })
}
