import type { PodView, Sender } from '../view.js'

export interface Point {
  readonly x: number
  readonly y: number
}

/** x, y, width, height. */
export type Frame = readonly [number, number, number, number]

/** The positions of all parts: for wide screens, for narrow ones, and for frames in other pages. */
export interface Layout {
  readonly width: number
  readonly height: number
  /** The top left corner of the visible part when there is no sender outside. */
  readonly outer: Point
  readonly node: Frame
  readonly node2: Frame
  readonly kernel: Frame
  /** The distance from the top of the frame to its title. */
  readonly kernelTitle: number
  readonly box: { readonly width: number; readonly height: number }
  readonly senders: Readonly<Record<Exclude<Sender, 'backend'>, Point>>
  readonly proxy: Point
  readonly service: Point
  /** The middle of the row of numbers. A number is a rule that every connection passes. */
  readonly hops: Point
  readonly pod: (node: string, index: number) => Point | undefined
  /** The position of the text that counts the pods without a place. */
  readonly more: Readonly<Record<'here' | 'elsewhere', Point>>
  /** The points of each wire. */
  readonly fromSender: (sender: Point, isOutside: boolean) => readonly Point[]
  readonly toPod: (pod: Point, isFar: boolean) => readonly Point[]
  readonly toProxy: readonly Point[]
  readonly proxyToPod: (pod: Point, isFar: boolean) => readonly Point[]
  readonly isNarrow: boolean
}

/** Places for the pods of this node, and of the other. */
function podsIn(near: readonly Point[], far: readonly Point[]): Layout['pod'] {
  return (node, index) => (node === 'node-2' ? far : near)[index]
}

export const serviceWidth = 216

/** The wires of a picture that is read from left to right. The pods of the other node are below. */
function sideways(
  parts: Pick<Layout, 'service' | 'proxy' | 'box'>,
): typeof parts & Pick<Layout, 'fromSender' | 'toPod' | 'toProxy' | 'proxyToPod' | 'isNarrow'> {
  const { service, proxy, box } = parts
  const [halfWidth, halfHeight] = [box.width / 2, box.height / 2]
  const at = (pod: Point, isFar: boolean): Point =>
    isFar ? { x: pod.x, y: pod.y - halfHeight } : { x: pod.x - halfWidth, y: pod.y }
  return {
    ...parts,
    fromSender: ({ x, y }) => [
      { x: x + halfWidth, y },
      { x: service.x - serviceWidth / 2, y: service.y },
    ],
    toPod: (pod, isFar) => [{ x: service.x + serviceWidth / 2, y: service.y }, at(pod, isFar)],
    toProxy: [
      { x: proxy.x, y: service.y - 34 },
      { x: proxy.x, y: proxy.y + halfHeight },
    ],
    proxyToPod: (pod, isFar) => [{ x: proxy.x + 75, y: proxy.y }, at(pod, isFar)],
    isNarrow: false,
  }
}

export const wide: Layout = {
  width: 900,
  height: 404,
  outer: { x: 138, y: 0 },
  node: [146, 10, 744, 276],
  // Its pods are right of the Service and left of the pods above, so that no wire crosses a box.
  node2: [566, 300, 300, 96],
  kernel: [348, 128, 260, 138],
  kernelTitle: 130,
  senders: {
    outside: { x: 66, y: 222 },
    'client-pod': { x: 226, y: 76 },
    node: { x: 226, y: 146 },
  },
  ...sideways({
    service: { x: 478, y: 212 },
    proxy: { x: 478, y: 62 },
    box: { width: 112, height: 44 },
  }),
  hops: { x: 478, y: 150 },
  pod: podsIn(
    [66, 144, 222].map((y) => ({ x: 814, y })),
    [630, 748].map((x) => ({ x, y: 350 })),
  ),
  more: { here: { x: 814, y: 268 }, elsewhere: { x: 689, y: 389 } },
}

/** For a frame of 600 × 360: its text is as large there as the text of a page. */
export const low: Layout = {
  width: 572,
  height: 229,
  outer: { x: 0, y: 0 },
  node: [1, 2, 570, 148],
  node2: [176, 154, 395, 73],
  kernel: [110, 52, 240, 94],
  kernelTitle: 14,
  senders: {
    outside: { x: 52, y: 196 },
    'client-pod': { x: 52, y: 52 },
    node: { x: 52, y: 104 },
  },
  ...sideways({
    service: { x: 230, y: 108 },
    proxy: { x: 244, y: 27 },
    box: { width: 96, height: 40 },
  }),
  hops: { x: 246, y: 62 },
  pod: podsIn(
    [27, 71, 115].map((y) => ({ x: 519, y })),
    [362, 462].map((x) => ({ x, y: 203 })),
  ),
  more: { here: { x: 517, y: 147 }, elsewhere: { x: 245, y: 207 } },
}

const narrowService = { x: 180, y: 250 }
const narrowProxy = { x: 294, y: 122 }
/** The wire to the other node leads down between the pods of this node. */
const betweenPods = ({ x }: Point): readonly Point[] => [
  { x, y: 372 },
  { x, y: 440 },
]

export const narrow: Layout = {
  width: 360,
  height: 574,
  outer: { x: 0, y: 58 },
  node: [5, 66, 350, 386],
  node2: [5, 466, 350, 102],
  kernel: [20, 176, 308, 116],
  kernelTitle: 22,
  box: { width: 104, height: 44 },
  senders: {
    outside: { x: 180, y: 32 },
    'client-pod': { x: 66, y: 122 },
    node: { x: 180, y: 122 },
  },
  proxy: narrowProxy,
  service: narrowService,
  hops: { x: 180, y: 195 },
  pod: podsIn(
    [66, 180, 294].map((x) => ({ x, y: 412 })),
    [123, 237].map((x) => ({ x, y: 528 })),
  ),
  more: { here: { x: 180, y: 448 }, elsewhere: { x: 180, y: 564 } },
  fromSender: (sender, isOutside) =>
    isOutside
      ? [
          { x: sender.x, y: sender.y + 22 },
          { x: 123, y: 94 },
          { x: 123, y: 152 },
          { x: narrowService.x, y: narrowService.y - 34 },
        ]
      : [
          { x: sender.x, y: sender.y + 22 },
          { x: narrowService.x, y: narrowService.y - 34 },
        ],
  toPod: (pod, isFar) => [
    { x: narrowService.x, y: narrowService.y + 34 },
    ...(isFar ? betweenPods(pod) : []),
    { x: pod.x, y: pod.y - 22 },
  ],
  toProxy: [
    { x: narrowService.x + 94, y: narrowService.y - 34 },
    { x: narrowProxy.x, y: narrowProxy.y + 22 },
  ],
  proxyToPod: (pod, isFar) => [
    { x: narrowProxy.x + 46, y: narrowProxy.y + 22 },
    { x: 342, y: 200 },
    { x: 342, y: 290 },
    ...(isFar ? betweenPods(pod) : []),
    { x: pod.x, y: pod.y - 22 },
  ],
  isNarrow: true,
}

export function placePods(pods: readonly PodView[], layout: Layout): ReadonlyMap<string, Point> {
  const counts = new Map<string, number>()
  const places = new Map<string, Point>()
  for (const { name, node, ip } of pods) {
    // A pod without an address is not drawn yet.
    if (ip === '') continue
    const index = counts.get(node) ?? 0
    const place = layout.pod(node, index)
    counts.set(node, index + 1)
    if (place) places.set(name, place)
  }
  return places
}

/**
 * A smooth line through points. At each point it is vertical with `isUpright`, else horizontal.
 * With `drops` it ends vertically.
 */
export function smooth(points: readonly Point[], isUpright: boolean, drops = false): string {
  const [first, ...rest] = points
  if (!first) return ''
  let from = first
  let path = `M${first.x} ${first.y}`
  for (const [index, to] of rest.entries()) {
    const { x: dx, y: dy } = { x: to.x - from.x, y: to.y - from.y }
    const endsDown = isUpright || (drops && index === rest.length - 1)
    const a = isUpright ? `${from.x} ${from.y + dy * 0.5}` : `${from.x + dx * 0.5} ${from.y}`
    const b = endsDown ? `${to.x} ${to.y - dy * 0.5}` : `${to.x - dx * 0.5} ${to.y}`
    path += `C${a} ${b} ${to.x} ${to.y}`
    from = to
  }
  return path
}
