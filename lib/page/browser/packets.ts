import { byId, drawn } from './element.js'
import { routesOf, type Routes } from './picture.js'
import type { Layout } from './picture-layout.js'
import type { LogEntry, View } from '../view.js'

const travelMs = 900
const samples = 24
/** Requests that were sent together arrive within this time. */
const gatherMs = 120

const calm = matchMedia('(prefers-reduced-motion: reduce)')
/** The number of the newest request that a dot has shown. */
let lastNumber = 0
/** The number of the newest request that `Keep sending` has sent. */
let lastContinuous = 0
let latest: { readonly view: View; readonly layout: Layout } | undefined
let isBusy = false

/** One dot moves at a time, for the eye to follow. The next shows all requests sent meanwhile. */
export function animatePackets(view: View, layout: Layout): void {
  const newest = view.log[0]?.number ?? 0
  if (newest < lastNumber) lastNumber = lastContinuous = 0
  if (view.continuous) lastContinuous = newest
  const isOtherPicture = latest?.view.mode !== view.mode || latest.layout !== layout
  latest = { view, layout }
  if (isOtherPicture) moving?.cancel()
  if (calm.matches || document.hidden) lastNumber = newest
  if (isBusy || newest === lastNumber) return
  isBusy = true
  setTimeout(next, view.continuous ? 0 : gatherMs)
}

function next(): void {
  isBusy = false
  const group = document.getElementById('packets')
  const [newest] = latest?.view.log ?? []
  if (!latest || !newest || !group) return
  const { view, layout } = latest
  const fresh = newest.number - lastNumber
  if (fresh < 1) return
  // A dot stands for only one of the requests of `Keep sending`.
  const count = Math.max(1, newest.number - Math.max(lastNumber, lastContinuous))
  lastNumber = newest.number
  const routes = routesOf(view, layout)
  const end = endOf(view, count)
  const route = end === undefined ? routes.shared : wayTo(end, routes)
  if (route === '') return
  isBusy = true
  travel(group, route, end?.isAnswered === false, count, next)
}

function wayTo({ isAnswered, answer, sentTo }: LogEntry, routes: Routes): string {
  const { toService, toPod, shared } = routes
  if (isAnswered) return toPod.get(answer) ?? shared
  return toPod.get(sentTo?.at(-1) ?? '') ?? toService
}

/** The newest request, if the others ended like it; else undefined. */
function endOf({ log, answers }: View, count: number): LogEntry | undefined {
  const [newest, ...others] = log.slice(0, count)
  const isKnown = count <= log.length || answers.length === 1
  const end = (entry: LogEntry | undefined) => [entry?.answer, ...(entry?.sentTo ?? [])].join()
  const isSame = others.every((entry) => end(entry) === end(newest))
  return isKnown && isSame ? newest : undefined
}

function travel(
  group: HTMLElement,
  route: string,
  isLost: boolean,
  count: number,
  ended: () => void,
): void {
  const dot = drawn('g', { class: isLost ? 'packet lost' : 'packet' })
  dot.append(drawn('circle', { cx: 0, cy: 0, r: count === 1 ? 6 : 15 }))
  if (count > 1) dot.append(drawn('text', { y: 4.5, 'text-anchor': 'middle' }, String(count)))
  const keyframes = pointsOf(route).map(({ x, y }) => ({ transform: `translate(${x}px, ${y}px)` }))
  group.append(dot)
  const animation = dot.animate(keyframes, {
    duration: travelMs,
    easing: 'ease-in-out',
    fill: 'both',
  })
  animation.playbackRate = isSlow ? slowRate : 1
  if (isPaused) animation.pause()
  moving = animation
  const end = () => {
    moving = undefined
    dot.remove()
    ended()
  }
  animation.addEventListener('finish', end)
  animation.addEventListener('cancel', end)
}

const slowRate = 0.2
const stepMs = 150
let moving: Animation | undefined
let isSlow = false
let isPaused = false

/** Called once. Connects the buttons for slow motion, pause and step. */
export function connectMotion(): void {
  const toggle = (id: string, change: (isOn: boolean) => void) => {
    const one = byId(id)
    one.addEventListener('click', () => {
      const isOn = one.getAttribute('aria-pressed') !== 'true'
      one.setAttribute('aria-pressed', String(isOn))
      change(isOn)
    })
  }
  toggle('slow', (isOn) => {
    isSlow = isOn
    if (moving) moving.playbackRate = isOn ? slowRate : 1
  })
  toggle('pause', (isOn) => {
    isPaused = isOn
    byId('step').toggleAttribute('disabled', !isOn)
    if (isOn) moving?.pause()
    else moving?.play()
  })
  byId('step').addEventListener('click', () => {
    if (!moving) return
    const at = Number(moving.currentTime ?? 0) + stepMs
    // A dot disappears at the end of its way.
    if (at >= travelMs) moving.finish()
    else moving.currentTime = at
  })
}

const known = new Map<string, readonly DOMPoint[]>()

/** Points along a way, at even distances. */
function pointsOf(route: string): readonly DOMPoint[] {
  let points = known.get(route)
  if (!points) {
    const legs = route.split(/(?=M)/).map((d) => drawn('path', { d: d.trim() }) as SVGPathElement)
    const lengths = legs.map((leg) => leg.getTotalLength())
    const whole = lengths.reduce((sum, length) => sum + length, 0)
    points = legs.flatMap((leg, index) => {
      const length = lengths[index] ?? 0
      const count = Math.max(2, Math.round((samples * length) / whole))
      return Array.from({ length: count }, (_, at) =>
        leg.getPointAtLength((length * at) / (count - 1)),
      )
    })
    if (known.size > 50) known.clear()
    known.set(route, points)
  }
  return points
}
