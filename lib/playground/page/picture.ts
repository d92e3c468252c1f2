import { byId, drawn } from './element.js'
import type { PodView, Sender, View, WayView } from '../view.js'

interface Point {
  readonly x: number
  readonly y: number
}

interface Layout {
  readonly width: number
  readonly height: number
  /** Frames of the two nodes: x, y, width, height. */
  readonly node: readonly [number, number, number, number]
  readonly node2: readonly [number, number, number, number]
  readonly senders: Readonly<Record<Sender, Point>>
  readonly service: Point
  readonly pod: (node: string, index: number) => Point
  readonly isNarrow: boolean
}

const boxWidth = 104
const boxHeight = 44

const wide: Layout = {
  width: 760,
  height: 350,
  node: [150, 12, 598, 218],
  node2: [478, 246, 270, 92],
  senders: {
    outside: { x: 62, y: 200 },
    'client-pod': { x: 220, y: 80 },
    node: { x: 220, y: 170 },
  },
  service: { x: 425, y: 125 },
  pod: (node, index) =>
    node === 'node-1' ? { x: 680, y: 65 + index * 64 } : { x: 548 + index * 126, y: 305 },
  isNarrow: false,
}

const narrow: Layout = {
  width: 360,
  height: 590,
  node: [4, 96, 352, 366],
  node2: [4, 478, 352, 100],
  senders: {
    outside: { x: 180, y: 44 },
    'client-pod': { x: 90, y: 165 },
    node: { x: 270, y: 165 },
  },
  service: { x: 180, y: 305 },
  pod: (node, index) =>
    node === 'node-1' ? { x: 65 + index * 115, y: 425 } : { x: 65 + index * 230, y: 542 },
  isNarrow: true,
}

const senderWords: Readonly<Record<Sender, string>> = {
  'client-pod': 'client pod',
  node: 'node process',
  outside: 'outside',
}

/** Draws who is where, and the way that a connection takes under the rules of now. */
export function drawPicture(view: View, isNarrow: boolean): void {
  const layout = isNarrow ? narrow : wide
  const picture = byId('picture')
  picture.setAttribute('viewBox', `0 0 ${layout.width} ${layout.height}`)
  picture.setAttribute('aria-label', describe(view))
  const places = placePods(view.pods, layout)
  picture.replaceChildren(
    ...frame(layout.node, `node-1, kube-proxy in ${view.mode} mode`),
    ...frame(layout.node2, 'node-2'),
    ...wires(view, layout, places),
    ...(Object.keys(layout.senders) as Sender[]).flatMap((sender) =>
      box(layout.senders[sender], senderWords[sender], '', sender === view.sender ? 'on' : ''),
    ),
    ...box(layout.service, 'Service web', view.target.address, 'on', 158),
    ...view.pods.flatMap((pod) => {
      const place = places.get(pod.name)
      if (!place) return []
      const used = view.path.ways.some((way) => way.pod === pod.name)
      const look = pod.state === 'ready' ? (used ? 'on' : '') : 'bad'
      return box(place, shortName(pod.name), pod.ip || pod.state, look)
    }),
  )
}

/** The part of a pod's name that tells it from its siblings. */
export function shortName(name: string): string {
  return name.replace(/^(web)-[0-9a-f]+-/, '$1-')
}

function describe({ path, sender, target }: View): string {
  const ends = path.ways.map(
    ({ probability, pod, verdict }) => `${percent(probability)} to ${pod || verdict}`,
  )
  return `From ${senderWords[sender]} to ${target.address}: ${ends.join(', ') || path.note}`
}

export function percent(probability: number): string {
  const value = probability * 100
  return `${Number.isInteger(value) ? value : value.toFixed(1)} %`
}

function placePods(pods: readonly PodView[], layout: Layout): ReadonlyMap<string, Point> {
  const counts = new Map<string, number>()
  const places = new Map<string, Point>()
  for (const { name, node, ip } of pods) {
    // A pod without an address waits for a place of its own.
    if (ip === '') continue
    const index = counts.get(node) ?? 0
    counts.set(node, index + 1)
    places.set(name, layout.pod(node, index))
  }
  return places
}

function wires(view: View, layout: Layout, places: ReadonlyMap<string, Point>): SVGElement[] {
  const { ways, shared } = view.path
  if (ways.length === 0) return []
  const from = layout.senders[view.sender]
  const { service } = layout
  const parts: SVGElement[] = [line(from, service, 4)]
  for (const way of ways) {
    const place = places.get(way.pod)
    if (place) parts.push(...branch(service, place, way, layout))
  }
  // Only the visible part of the line, between the two boxes, carries the numbers.
  const [start, end] = layout.isNarrow ? [0.3, 0.74] : [0.3, 0.58]
  shared.forEach((_, index) => {
    const share = shared.length === 1 ? 0.5 : index / (shared.length - 1)
    parts.push(...dot(between(from, service, start + (end - start) * share), index + 1))
  })
  const stopped = ways.find(({ end }) => end === 'stopped')
  if (stopped) {
    const at = { 'text-anchor': 'middle', x: service.x, y: service.y + 44, class: 'stop' }
    parts.push(drawn('text', at, stopped.verdict.split(':')[0] ?? ''))
  }
  return parts
}

function branch(from: Point, to: Point, way: WayView, { isNarrow }: Layout): SVGElement[] {
  const label = between(from, to, isNarrow ? 0.5 : 0.55)
  return [
    line(from, to, 1.5 + 6 * way.probability),
    drawn(
      'text',
      { x: label.x, y: label.y + 4, 'text-anchor': 'middle', class: 'soft share' },
      percent(way.probability),
    ),
  ]
}

function line(from: Point, to: Point, width: number): SVGElement {
  const place = { x1: from.x, y1: from.y, x2: to.x, y2: to.y }
  return drawn('line', { ...place, class: 'wire', 'stroke-width': width })
}

function between(from: Point, to: Point, share: number): Point {
  return { x: from.x + (to.x - from.x) * share, y: from.y + (to.y - from.y) * share }
}

function dot({ x, y }: Point, number: number): SVGElement[] {
  return [
    drawn('circle', { cx: x, cy: y, r: 9, class: 'hop' }),
    drawn('text', { x, y: y + 4, 'text-anchor': 'middle', class: 'number' }, String(number)),
  ]
}

function frame([x, y, width, height]: Layout['node'], title: string): SVGElement[] {
  return [
    drawn('rect', { x, y, width, height, rx: 12, class: 'node' }),
    drawn('text', { x: x + 12, y: y + 20, class: 'soft' }, title),
  ]
}

function box(at: Point, title: string, below: string, look: string, width = boxWidth) {
  const { x, y } = at
  const place = { x: x - width / 2, y: y - boxHeight / 2, width, height: boxHeight, rx: 8 }
  const middle = below === '' ? 5 : -3
  return [
    drawn('rect', { ...place, class: `box ${look}` }),
    drawn('text', { x, y: y + middle, 'text-anchor': 'middle' }, title),
    drawn('text', { x, y: y + 14, 'text-anchor': 'middle', class: 'soft' }, below),
  ]
}
