import { byId, drawn, percent, shortName } from './element.js'
import {
  placePods,
  serviceWidth,
  smooth,
  type Frame,
  type Layout,
  type Point,
} from './picture-layout.js'
import { showHop } from './path-panel.js'
import type { PodView, Sender, View, WayView } from '../view.js'

const senderWords: Readonly<Record<Sender, string>> = {
  'client-pod': 'client pod',
  node: 'node process',
  outside: 'outside',
  backend: 'a pod of the Service',
}

/** The part that does the work in each mode, in a few words. */
const machinery: Readonly<Record<string, string>> = {
  userspace: 'rules hand it to kube-proxy',
  iptables: 'iptables, table nat',
  ipvs: 'IPVS virtual server',
  nftables: 'nftables maps',
  ebpf: 'eBPF at sockets, or nftables',
}

/** The lines along which packets move: to the Service, and from there to each pod. */
export interface Routes {
  readonly toService: string
  /** The beginning that the ways to all pods share. */
  readonly shared: string
  readonly toPod: ReadonlyMap<string, string>
}

/** Draws all places, and the path of a connection under the current rules. */
export function drawPicture(view: View, layout: Layout): void {
  const picture = byId('picture')
  const { width, height } = layout
  const edge = view.senders.includes('outside') ? { x: 0, y: 0 } : layout.outer
  picture.setAttribute('viewBox', `${edge.x} ${edge.y} ${width - edge.x} ${height - edge.y}`)
  picture.setAttribute('aria-label', describe(view))
  const places = placePods(view.pods, layout)
  const parts = [
    ...frame(layout.node, view.nodeNames?.[0] ?? 'node-1'),
    ...frame(layout.node2, view.nodeNames?.[1] ?? 'node-2', { align: 'end' }),
    ...frame(layout.kernel, 'kernel', { look: 'kernel', below: layout.kernelTitle }),
    ...wires(view, layout, places),
    ...hopNumbers(view, layout),
    ...senderBoxes(view, layout),
    ...proxyBox(view, layout),
    ...serviceBox(view, layout),
    ...view.pods.flatMap((pod) => podBox(pod, view, places.get(pod.name), layout)),
    ...morePods(view, layout, places),
    // The dots are kept, so that they go on while the picture changes.
    document.getElementById('packets') ?? drawn('g', { id: 'packets' }),
  ]
  const focused = picture.querySelector<SVGElement>(':focus')?.dataset['hop']
  picture.replaceChildren(...parts)
  for (const text of picture.querySelectorAll<SVGTextElement>('[data-room]')) fit(text)
  if (focused !== undefined) {
    picture.querySelector<SVGElement>(`[data-hop="${focused}"]`)?.focus({ preventScroll: true })
  }
}

export function routesOf(view: View, layout: Layout): Routes {
  const places = placePods(view.pods, layout)
  const toService = senderRoute(view, layout, places)
  const toPod = new Map<string, string>()
  const usesProxy = view.mode === 'userspace'
  const shared = usesProxy ? `${toService} ${smooth(layout.toProxy, true)}` : toService
  for (const pod of view.pods) {
    const place = places.get(pod.name)
    if (!place) continue
    const isFar = pod.node === 'node-2'
    const points = usesProxy ? layout.proxyToPod(place, isFar) : layout.toPod(place, isFar)
    toPod.set(pod.name, `${shared} ${smooth(points, layout.isNarrow, isFar)}`)
  }
  return { toService, shared, toPod }
}

function senderRoute(view: View, layout: Layout, places: ReadonlyMap<string, Point>): string {
  const isOutside = view.sender === 'outside'
  if (view.sender === 'backend') {
    const own = view.pods.find(({ state, node }) => state === 'ready' && node === 'node-1')
    const place = own && places.get(own.name)
    if (!place) return ''
    // The line from the Service to the pod, in reverse.
    return smooth([...layout.toPod(place, false)].reverse(), layout.isNarrow)
  }
  return smooth(layout.fromSender(layout.senders[view.sender], isOutside), layout.isNarrow)
}

function describe({ path, sender, target }: View): string {
  const ends = path.ways.map(
    ({ probability, pod, verdict }) => `${percent(probability)} to ${pod || verdict}`,
  )
  return `From ${senderWords[sender]} to ${target.address}: ${ends.join(', ') || path.note}`
}

function wires(view: View, layout: Layout, places: ReadonlyMap<string, Point>): SVGElement[] {
  const { ways } = view.path
  const usesProxy = view.mode === 'userspace'
  const parts: SVGElement[] = []
  const byProxy = smooth([...layout.toProxy].reverse(), true)
  if (!usesProxy) parts.push(drawn('path', { d: byProxy, class: 'writes' }))
  if (ways.length === 0) return parts
  parts.push(wire(senderRoute(view, layout, places), 4))
  const ends = ways.filter((way) => places.has(way.pod))
  if (usesProxy && ends.length > 0) parts.push(wire(smooth(layout.toProxy, true), 4))
  const labels: SVGElement[] = []
  for (const way of ends) {
    const place = places.get(way.pod)
    const isFar = view.pods.some(({ name, node }) => name === way.pod && node === 'node-2')
    if (!place) continue
    const points = usesProxy ? layout.proxyToPod(place, isFar) : layout.toPod(place, isFar)
    parts.push(wire(smooth(points, layout.isNarrow, isFar), 1.5 + 5 * way.probability))
    labels.push(...share(place, isFar, way, layout))
  }
  return [...parts, ...labels]
}

function wire(d: string, width: number): SVGElement {
  return drawn('path', { d, class: 'wire', 'stroke-width': width })
}

/** The probability of a way, on a small label before its pod. */
function share(pod: Point, isFar: boolean, way: WayView, layout: Layout): SVGElement[] {
  const isAbove = isFar || layout.isNarrow
  const x = isAbove ? pod.x : pod.x - layout.box.width / 2 - 34
  const y = isAbove ? pod.y - layout.box.height / 2 - 15 : pod.y
  const width = document.documentElement.matches('.present, .embed') ? 62 : 52
  const plate = { x: x - width / 2, y: y - 10, width, height: 20, rx: 10, class: 'plate' }
  const words = percent(way.probability)
  return [
    drawn('rect', plate),
    drawn('text', { x, y: y + 4, 'text-anchor': 'middle', class: 'share' }, words),
  ]
}

/** The rules that all connections pass, numbered as in the list beside the picture. */
function hopNumbers({ path }: View, { hops }: Layout): SVGElement[] {
  const count = path.shared.length
  const step = Math.min(26, 150 / Math.max(1, count - 1))
  return path.shared.map((hop, index) => {
    const x = hops.x + (index - (count - 1) / 2) * step
    const parts = [
      drawn('circle', { cx: x, cy: hops.y, r: 9.5, class: 'hop' }),
      drawn('text', { x, y: hops.y + 4, 'text-anchor': 'middle', class: 'number' }, `${index + 1}`),
    ]
    const label = `hop ${index + 1}: ${hop.where}`
    const link = drawn('g', { role: 'button', tabindex: 0, 'aria-label': label, 'data-hop': index })
    link.append(...parts)
    link.addEventListener('click', () => showHop(index))
    link.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' && event.key !== ' ') return
      event.preventDefault()
      showHop(index)
    })
    return link
  })
}

function frame(
  [x, y, width, height]: Frame,
  title: string,
  { look = 'node', align = 'start', below = 20 } = {},
): SVGElement[] {
  const at = { x: align === 'end' ? x + width - 12 : x + 12, y: y + below, 'text-anchor': align }
  return [
    drawn('rect', { x, y, width, height, rx: 12, class: look }),
    drawn('text', { ...at, 'data-room': width - 24, class: 'soft' }, title),
  ]
}

function senderBoxes(view: View, layout: Layout): SVGElement[] {
  const here = (['outside', 'client-pod', 'node'] as const).filter((sender) =>
    view.senders.includes(sender),
  )
  return here.flatMap((sender) =>
    box(layout.senders[sender], [senderWords[sender]], sender === view.sender ? 'on' : '', layout),
  )
}

function proxyBox({ mode }: View, layout: Layout): SVGElement[] {
  const isInTheWay = mode === 'userspace'
  const below = isInTheWay ? 'in the way' : 'writes the rules'
  const width = layout.isNarrow ? layout.box.width : 150
  return box(layout.proxy, ['kube-proxy', below], isInTheWay ? 'on' : 'quiet', layout, width)
}

function serviceBox(view: View, layout: Layout): SVGElement[] {
  const { service, target, mode, path, listensItself } = view
  const { x, y } = layout.service
  const does = listensItself && mode === 'userspace' ? 'kube-proxy listens at it' : machinery[mode]
  const stopped = path.ways.find(({ end }) => end === 'stopped')
  const verdict = stopped?.verdict.split(':')[0]
  const place = {
    x: x - serviceWidth / 2,
    y: y - 34,
    width: serviceWidth,
    height: 68,
  }
  const middle = { x, 'text-anchor': 'middle', 'data-room': serviceWidth - 12 }
  const name = cut(`Service ${service.name.replace(/^default\//, '')}`, 26)
  return [
    drawn('rect', { ...place, rx: 10, class: `box ${verdict === undefined ? 'on' : 'bad'}` }),
    drawn('text', { ...middle, y: y - 14, class: 'strong' }, name),
    drawn('text', { ...middle, y: y + 5 }, target.address),
    verdict === undefined
      ? drawn('text', { ...middle, y: y + 24, class: 'soft' }, does ?? mode)
      : drawn('text', { ...middle, y: y + 24, class: 'stop' }, verdict),
  ]
}

function podBox(pod: PodView, view: View, place: Point | undefined, layout: Layout): SVGElement[] {
  if (!place) return []
  const isUsed = view.path.ways.some((way) => way.pod === pod.name)
  const look = pod.state === 'ready' ? (isUsed ? 'on' : '') : 'bad'
  // A pod without a known name has its address and port as name.
  const [title, below] =
    pod.ip !== '' && pod.name.includes(pod.ip)
      ? [pod.ip, `port ${pod.name.split(':').at(-1) ?? ''}`]
      : [shortName(pod.name), pod.ip]
  const words = pod.isPending ? 'on its way' : pod.state === 'ready' ? below : pod.state
  return box(place, [cut(title, 15), words], pod.isPending ? 'pending' : look, layout)
}

/** A real node may have more pods of a Service than a picture has room for. */
function morePods(
  { pods, path }: View,
  layout: Layout,
  places: ReadonlyMap<string, Point>,
): SVGElement[] {
  const left = pods.filter(({ name, ip }) => ip !== '' && !places.has(name))
  return (['here', 'elsewhere'] as const).flatMap((where) => {
    const names = left
      .filter(({ node }) => (node === 'node-2') === (where === 'elsewhere'))
      .map(({ name }) => name)
    if (names.length === 0) return []
    const chance = path.ways
      .filter(({ pod }) => names.includes(pod))
      .reduce((sum, { probability }) => sum + probability, 0)
    const words = `and ${names.length} more: ${percent(chance)}`
    const middle = { 'text-anchor': 'middle', 'data-room': layout.box.width + 8 }
    return [drawn('text', { ...layout.more[where], ...middle, class: 'soft' }, words)]
  })
}

function box(
  { x, y }: Point,
  [title = '', below]: readonly string[],
  look: string,
  layout: Layout,
  width = layout.box.width,
): SVGElement[] {
  const { height } = layout.box
  const place = { x: x - width / 2, y: y - height / 2, width, height, rx: 8 }
  const middle = { x, 'text-anchor': 'middle', 'data-room': width - 8 }
  return [
    drawn('rect', { ...place, class: `box ${look}` }),
    drawn('text', { ...middle, y: y + (below === undefined ? 5 : -3) }, title),
    ...(below === undefined ? [] : [drawn('text', { ...middle, y: y + 14, class: 'soft' }, below)]),
  ]
}

/** Squeezes a text that is wider than its box: wide letters, IPv6 addresses, names of nodes. */
function fit(text: SVGTextElement): void {
  const room = text.dataset['room'] ?? ''
  if (text.getComputedTextLength() <= Number(room)) return
  text.setAttribute('textLength', room)
  text.setAttribute('lengthAdjust', 'spacingAndGlyphs')
}

function cut(text: string, length: number): string {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text
}
