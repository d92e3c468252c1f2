import { byId, drawn } from './element.js'
import { routesOf } from './picture.js'
import type { LogEntry, View } from '../view.js'

/** More dots at once cannot be told apart. */
const maximumAtOnce = 8
const travelMs = 900
const samples = 24

const calm = matchMedia('(prefers-reduced-motion: reduce)')
let lastNumber = 0

/** Moves one dot for each request since the last view. */
export function animatePackets(view: View, isNarrow: boolean): void {
  const [newest] = view.log
  if (!newest || newest.number < lastNumber) lastNumber = 0
  if (!newest) return
  const fresh = view.log.filter(({ number }) => number > lastNumber).slice(0, maximumAtOnce)
  lastNumber = newest.number
  const group = document.getElementById('packets')
  if (!group || calm.matches || document.hidden) return
  const routes = routesOf(view, isNarrow)
  fresh.reverse().forEach((entry, index) => {
    const route = entry.isAnswered ? routes.toPod.get(entry.answer) : routes.toService
    if (route === undefined || route === '') return
    travel(group, route, entry, index * 90)
  })
}

function travel(group: HTMLElement, route: string, entry: LogEntry, delay: number): void {
  const look = entry.isAnswered ? 'packet' : 'packet lost'
  const dot = drawn('circle', { cx: 0, cy: 0, r: 6, class: look })
  const keyframes = pointsOf(route).map(({ x, y }) => ({ transform: `translate(${x}px, ${y}px)` }))
  group.append(dot)
  const animation = dot.animate(keyframes, {
    duration: travelMs,
    delay,
    easing: 'ease-in-out',
    fill: 'both',
  })
  animation.playbackRate = isSlow ? slowRate : 1
  if (isPaused) animation.pause()
  moving.add(animation)
  const end = () => {
    moving.delete(animation)
    dot.remove()
  }
  animation.addEventListener('finish', end)
  animation.addEventListener('cancel', end)
}

const slowRate = 0.2
const stepMs = 150
const moving = new Set<Animation>()
let isSlow = false
let isPaused = false

/** Called once: how fast the dots move, for those who explain them. */
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
    for (const each of moving) each.playbackRate = isOn ? slowRate : 1
  })
  toggle('pause', (isOn) => {
    isPaused = isOn
    byId('step').toggleAttribute('disabled', !isOn)
    for (const each of moving) {
      if (isOn) each.pause()
      else each.play()
    }
  })
  byId('step').addEventListener('click', () => {
    // A dot at its end is gone.
    for (const each of moving) {
      const at = Number(each.currentTime ?? 0) + stepMs
      const { endTime = 0 } = each.effect?.getComputedTiming() ?? {}
      if (at >= Number(endTime)) each.finish()
      else each.currentTime = at
    }
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
