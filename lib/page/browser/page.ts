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
import type { View } from '../view.js'

const narrowScreen = matchMedia('(max-width: 760px)')
let latest: View | undefined

function show(view: View): void {
  const { busy, mode } = view
  byId('status').textContent = busy === '' ? `running in ${mode} mode` : `${busy} …`
  byId('status').className = busy === '' ? '' : 'busy'
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

connectControls(() => latest)
connectObjects(() => latest)
narrowScreen.addEventListener('change', () => {
  if (latest) show(latest)
})

const events = new EventSource('/events')
let frame = 0
events.addEventListener('message', ({ data }: MessageEvent<string>) => {
  // Each message holds the parts that have changed; the first one holds all.
  latest = { ...latest, ...(JSON.parse(data) as View) }
  frame ||= requestAnimationFrame(() => {
    frame = 0
    if (latest) show(latest)
  })
})
events.addEventListener('error', () => {
  byId('status').textContent = 'the playground has ended or does not answer; waiting for it …'
  byId('status').className = 'busy'
})
