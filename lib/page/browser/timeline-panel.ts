import { byId, element, drawIfChanged } from './element.js'
import type { TimelineStep, View } from '../view.js'

/** When each part did its work, drawn to scale. */
export function showTimeline({ timeline, isReadOnly }: View): void {
  byId('timeline-card').hidden = isReadOnly && timeline === null
  drawIfChanged('timeline', timeline, () => {
    byId('timeline-title').textContent = timeline?.title ?? ''
    byId('timeline-note').textContent =
      timeline?.note ?? 'Terminate a pod or add a replica, and see how long each part takes.'
    const whole = timeline?.steps.at(-1)?.atMs ?? 0
    const steps = timeline?.steps ?? []
    byId('timeline').replaceChildren(
      ...steps.map((step, index) => row(step, steps[index - 1]?.atMs ?? 0, whole)),
    )
  })
}

function row({ name, what, atMs }: TimelineStep, before: number, whole: number): Node {
  const scale = whole === 0 ? 0 : 100 / whole
  const bar = element('span', 'span')
  // Set in the object model, because a style attribute needs a weaker content security policy.
  bar.style.marginLeft = `${before * scale}%`
  bar.style.width = `max(3px, ${(atMs - before) * scale}%)`
  const label = element('span', 'step', name)
  const spent = atMs - before
  const time = element('span', 'ms', `${atMs.toFixed(1)} ms`)
  time.title = `${spent.toFixed(1)} ms after the step before`
  return element('li', '', label, element('span', 'track', bar), time, element('p', 'why', what))
}
