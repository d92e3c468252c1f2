import { animatePackets } from './packets.js'
import { byId, element, redraw } from './element.js'
import { connectControls, showControls } from './controls.js'
import { connectObjects, showObjects } from './yaml-panel.js'
import { drawPicture } from './picture.js'
import { showLessons } from './lessons-panel.js'
import { showPath } from './path-panel.js'
import { showRules } from './rules-panel.js'
import { showTimeline } from './timeline-panel.js'
import { showTraffic } from './traffic-panel.js'
import type { Frame, ServiceLine, View } from '../view.js'

const narrowScreen = matchMedia('(max-width: 760px)')
let latest: View | undefined

function show(view: View): void {
  const { busy, mode, pending } = view
  byId('status').textContent = busy === '' ? `running in ${mode} mode` : `${busy} …`
  byId('status').className = busy === '' ? '' : 'busy'
  byId('pending').textContent = pending
  byId('where').textContent = view.where
  document.body.dataset['mode'] = mode
  document.body.classList.toggle('read-only', view.isReadOnly)
  if (view.isReadOnly && document.title !== 'kube-proxy') {
    document.title = 'kube-proxy'
    // A read-only page has no lessons, so the list of Services takes their place.
    byId('side').prepend(byId('services-card'))
  }
  byId('title').textContent = view.isReadOnly ? 'kube-proxy' : 'kube-proxy playground'
  redraw('limits', view.limits, () => {
    byId('limits').hidden = view.limits.length === 0
    byId('limits').replaceChildren(...view.limits.map((words) => element('p', '', words)))
  })
  showControls(view)
  const { path, pods, sender, senders, target, service } = view
  redraw(
    'picture',
    [mode, path, pods, sender, senders, target, service, narrowScreen.matches],
    () => drawPicture(view, narrowScreen.matches),
  )
  showTraffic(view)
  animatePackets(view, narrowScreen.matches)
  showPath(view)
  showRules(view)
  showTimeline(view)
  showLessons(view)
  showObjects(view)
  if (performance.getEntriesByName('first-view').length === 0) performance.mark('first-view')
}

function sorted(lines: ReadonlyMap<string, ServiceLine>): readonly ServiceLine[] {
  return [...lines.values()].sort((a, b) => (a.key < b.key ? -1 : 1))
}

connectControls(() => latest)
connectObjects(() => latest)
narrowScreen.addEventListener('change', () => {
  if (latest) show(latest)
})

const events = new EventSource('/events')
let frame = 0
/** By their keys; a frame holds those that have changed. */
const services = new Map<string, ServiceLine>()

events.addEventListener('open', () => {
  // The first frame of a connection holds everything.
  services.clear()
})
events.addEventListener('message', ({ data }: MessageEvent<string>) => {
  const { services: changes, ...parts } = JSON.parse(data) as Frame
  for (const line of changes?.set ?? []) services.set(line.key, line)
  for (const key of changes?.gone ?? []) services.delete(key)
  const lines = changes ? sorted(services) : (latest?.services ?? [])
  // The first frame has every part.
  latest = { ...(latest as View), ...parts, services: lines }
  frame ||= requestAnimationFrame(() => {
    frame = 0
    if (latest) show(latest)
  })
})
events.addEventListener('error', () => {
  byId('status').textContent =
    events.readyState === EventSource.CLOSED
      ? 'this page is not served: too many are open, or it needs a token; close one and load it again'
      : 'the playground has ended or does not answer; waiting for it …'
  byId('status').className = 'busy'
})
