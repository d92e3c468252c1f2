import { animatePackets, connectMotion } from './packets.js'
import { byId, element, drawIfChanged, setText } from './element.js'
import { connectControls, showControls, showRefusal } from './controls.js'
import { connectComparison, showComparison } from './compare-panel.js'
import { connectObjects, showObjects } from './yaml-panel.js'
import { drawPicture } from './picture.js'
import { low, narrow, wide } from './picture-layout.js'
import { openScene, writeScene } from './scene.js'
import { connectTabs, followActive, showExercises } from './exercises-panel.js'
import { showLessons } from './lessons-panel.js'
import { connectFlows, showFlows } from './flows-panel.js'
import { showCounters, showPath } from './path-panel.js'
import { showRules, showTimeline } from './change-panel.js'
import { showTraffic } from './traffic-panel.js'
import { useLink, type PageLink } from './link.js'
import type { View } from '../view.js'

const asked = new URLSearchParams(location.search)
/** A frame in another page has no room for the upright picture, unless the frame is upright, too. */
const shape = asked.has('embed') ? ' and (aspect-ratio <= 4/5)' : ''
const narrowScreen = matchMedia(`screen and (max-width: 760px)${shape}`)
let latest: View | undefined

function show(view: View): void {
  const { busy, mode, pending } = view
  const layout = narrowScreen.matches ? narrow : asked.has('embed') ? low : wide
  setText('status', busy === '' ? `running in ${mode} mode` : `${busy} …`)
  byId('status').className = busy === '' ? '' : 'busy'
  setText('pending', pending)
  byId('where').textContent = view.where
  document.body.dataset['mode'] = mode
  document.body.classList.toggle('read-only', view.isReadOnly)
  if (view.isReadOnly && document.title !== 'kube-proxy') {
    document.title = 'kube-proxy'
    // A read-only page has no lessons, so the list of Services takes their place.
    byId('side').prepend(byId('services-card'))
  }
  byId('title').textContent = view.isReadOnly ? 'kube-proxy' : 'kube-proxy playground'
  drawIfChanged('limits', view.limits, () => {
    byId('limits').hidden = view.limits.length === 0
    byId('limits').replaceChildren(...view.limits.map((words) => element('p', '', words)))
  })
  showControls(view)
  const { path, pods, sender, senders, target, service } = view
  drawIfChanged(
    'picture',
    [mode, path, pods, sender, senders, target, service, narrowScreen.matches],
    () => drawPicture(view, layout),
  )
  showTraffic(view)
  animatePackets(view, layout)
  showPath(view)
  showFlows(view)
  showComparison(view)
  showCounters(view)
  showRules(view)
  showTimeline(view)
  showLessons(view)
  showExercises(view)
  followActive(view)
  showObjects(view)
  if (performance.getEntriesByName('first-view').length === 0) performance.mark('first-view')
}

/** A press that lasts longer is not a click, or it ended outside the page. */
const longestPressMs = 1000
/** A finger's click comes some time after it is lifted. */
const clickMs = 50

/**
 * Draws in the next frame, but not while a pointer is pressed: a button that moves away from under
 * it gets no click.
 */
function atNextFrame(draw: () => void): () => void {
  let frame = 0
  let heldUntil = 0
  const hold = (ms: number) => (heldUntil = performance.now() + ms)
  document.addEventListener('pointerdown', () => hold(longestPressMs))
  for (const end of ['pointerup', 'pointercancel'])
    document.addEventListener(end, () => hold(clickMs))
  const drawOrWait = () => {
    const isHeld = performance.now() < heldUntil
    frame = isHeld ? requestAnimationFrame(drawOrWait) : 0
    if (!isHeld) draw()
  }
  return () => {
    frame ||= requestAnimationFrame(drawOrWait)
  }
}

/** Called once. */
export function openPage(link: PageLink): void {
  useLink(link)
  connectControls(() => latest)
  connectObjects(() => latest)
  connectComparison(() => latest)
  connectTabs()
  connectMotion()
  connectFlows(() => latest)
  narrowScreen.addEventListener('change', () => {
    if (latest) show(latest)
  })
  for (const look of ['present', 'embed']) {
    document.documentElement.classList.toggle(look, asked.has(look))
  }
  let hasBegun = false
  let isOpened = false
  let isLost = false
  const drawSoon = atNextFrame(() => {
    if (!latest) return
    show(latest)
    if (isOpened) void writeScene(latest)
  })
  link.follow(
    (view) => {
      latest = view
      drawSoon()
      // A command that failed meanwhile has said that the server is gone.
      if (isLost) showRefusal(undefined)
      isLost = false
      if (!link.isLocal || hasBegun || view.busy !== '') return
      hasBegun = true
      void openScene().then(() => (isOpened = true))
    },
    (words) => {
      isLost = true
      setText('status', words)
      byId('status').className = 'busy'
    },
  )
}
