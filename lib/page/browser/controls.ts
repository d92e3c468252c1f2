import { link } from './link.js'
import {
  button,
  byId,
  element,
  drawIfChanged,
  keyed,
  setText,
  updateChildren,
  shortName,
} from './element.js'
import type { PageCommand, PodAction } from '../page-command.js'
import type { PodView, ServiceType, View } from '../view.js'

/** Sends a command to the playground; a refusal is shown at the top of the page. */
export async function send(command: PageCommand): Promise<boolean> {
  const refused = await link().perform(command)
  showRefusal(refused)
  return refused === undefined
}

export function showRefusal(refused: string | undefined): void {
  const error = byId('error')
  error.textContent = refused ?? ''
  error.hidden = refused === undefined
}

/** The details are left out where there is no room. */
type Choice<Value> = readonly [value: Value, words: string, details?: string]

/**
 * A group of buttons, of which one is pressed. They are replaced only when they change, because a
 * replaced button loses the focus.
 */
export function choices<Value extends string>(
  id: string,
  names: readonly Choice<Value>[],
  current: string,
  choose: (value: Value) => PageCommand | undefined,
): void {
  const group = byId(id)
  drawIfChanged(`choices ${id}`, names, () => {
    const made = names.map(([value, words, details]) => {
      const one = button(words, () => {
        const shown = group.querySelector(`[data-value="${value}"]`)
        if (shown?.ariaPressed === 'true' || shown?.ariaDisabled === 'true') return
        const command = choose(value)
        if (command) void send(command)
      })
      if (details !== undefined) one.append(element('span', 'details', ` ${details}`))
      one.dataset['value'] = value
      one.dataset['key'] = value
      return one
    })
    const legend = [...group.children].filter((child) => !(child instanceof HTMLButtonElement))
    updateChildren(group, ...legend, ...made)
  })
  for (const one of group.querySelectorAll('button')) {
    one.setAttribute('aria-pressed', String(one.dataset['value'] === current))
  }
}

/** Choices that are shown by their names. */
export function named<Value extends string>(names: readonly Value[]): readonly Choice<Value>[] {
  return names.map((name) => [name, name])
}

const senders = [
  ['client-pod', 'a pod'],
  ['node', 'the node'],
  ['outside', 'outside'],
  ['backend', 'a pod of the Service'],
] as const
const types: readonly ServiceType[] = ['ClusterIP', 'NodePort', 'LoadBalancer']
const schedulers = ['rr', 'lc', 'sh', 'wrr'] as const

export function showControls(view: View): void {
  const { service } = view
  choices('modes', named(view.modes), view.mode, (mode) => ({ do: 'mode', mode }))
  for (const one of byId('modes').querySelectorAll('button')) {
    // A button that is `disabled` loses the focus.
    one.ariaDisabled = String(view.busy !== '')
    one.classList.add('mode', one.dataset['value'] ?? '')
  }
  const here = senders.filter(([name]) => view.senders.includes(name))
  choices('senders', here, view.sender, (sender) => ({ do: 'sender', sender }))
  const targets = view.targets.map(({ name, address }) => [name, name, address] as const)
  choices('targets', targets, view.target.name, (target) => ({ do: 'target', target }))
  byId('families').hidden = view.families.length < 2
  choices('families', named(view.families), view.family, (family) => ({ do: 'family', family }))
  choices('types', named(types), service.type, (type) => ({ do: 'type', type }))
  const isIpvs = view.mode === 'ipvs' || view.rules.mode === 'ipvs'
  byId('schedulers').hidden = !isIpvs
  choices('schedulers', named(schedulers), view.scheduler, (scheduler) => ({
    do: 'scheduler',
    scheduler,
  }))
  byId('continuous').setAttribute('aria-pressed', String(view.continuous))
  setText('replicas', String(view.replicas))
  byId('fewer').ariaDisabled = String(view.replicas <= 0)
  byId('more').ariaDisabled = String(view.replicas >= view.mostReplicas)
  setChecked('affinity', service.affinity)
  setChecked('internal', service.internalPolicy === 'Local')
  setChecked('external', service.externalPolicy === 'Local')
  byId('external').toggleAttribute('disabled', service.type === 'ClusterIP')
  byId('ranges-row').hidden = service.type !== 'LoadBalancer'
  const ranges = byId('ranges')
  if (ranges instanceof HTMLInputElement && document.activeElement !== ranges) {
    ranges.value = service.sourceRanges.join(', ')
  }
  drawIfChanged('pods', [view.pods, view.nodeNames ?? null], () =>
    updateChildren(byId('pods'), ...view.pods.map((pod) => podRow(pod, view.nodeNames))),
  )
}

/** Shown at a pod that came or left, while the kernel still has the old rules. */
const pendingWords = 'on its way to the kernel'

const actions: Readonly<Record<PodView['state'], readonly (readonly [PodAction, string])[]>> = {
  ready: [
    ['unready', 'not ready'],
    ['kill', 'kill'],
    ['terminate', 'terminate'],
  ],
  'not ready': [
    ['ready', 'ready'],
    ['kill', 'kill'],
    ['terminate', 'terminate'],
  ],
  stopped: [
    ['revive', 'revive'],
    ['terminate', 'terminate'],
  ],
  failing: [
    ['kill', 'kill'],
    ['terminate', 'terminate'],
  ],
  starting: [['terminate', 'terminate']],
  terminating: [],
}

function podRow(pod: PodView, nodeNames: View['nodeNames']): Node {
  const { name, ip, state, isPending } = pod
  const node = nodeNames?.[pod.node === 'node-1' ? 0 : 1] ?? pod.node
  const label = element('span', 'name', shortName(name))
  label.title = name
  const buttons = actions[state].map(([action, words]) => {
    const one = button(words, () => void send({ do: 'pod', pod: name, action }), `${words} ${name}`)
    one.dataset['key'] = `${name} ${action}`
    one.dataset['action'] = action
    one.className = 'small control'
    return one
  })
  const where = element(
    'span',
    'where-is',
    [ip || 'no address yet', node || 'no node yet'].join(' · '),
  )
  if (isPending) where.append(element('span', 'pending', pendingWords))
  const shown = element('span', `state ${state.replace(' ', '-')}`, state)
  const acts = keyed('actions', element('span', 'actions', ...buttons))
  const row = keyed(name, element('li', '', label, shown, where, acts))
  row.tabIndex = -1
  return row
}

function setChecked(id: string, isOn: boolean): void {
  const box = byId(id)
  if (box instanceof HTMLInputElement) box.checked = isOn
}

function onClick(id: string, command: () => PageCommand): void {
  byId(id).addEventListener('click', () => void send(command()))
}

function onToggle(id: string, command: (isOn: boolean) => PageCommand, undo: () => void): void {
  const box = byId(id)
  box.addEventListener('change', () => {
    if (!(box instanceof HTMLInputElement)) return
    void send(command(box.checked)).then((isDone) => isDone || undo())
  })
}

/** Called once; `latest` gives the view at the time of a click. */
export function connectControls(latest: () => View | undefined): void {
  onClick('send-1', () => ({ do: 'send', count: 1 }))
  onClick('send-100', () => ({ do: 'send', count: 100 }))
  onClick('continuous', () => ({ do: 'continuous', on: latest()?.continuous !== true }))
  const count = (by: number) => {
    const { replicas = 1, mostReplicas = 1 } = latest() ?? {}
    return Math.min(mostReplicas, Math.max(0, replicas + by))
  }
  onClick('fewer', () => ({ do: 'replicas', count: count(-1) }))
  onClick('more', () => ({ do: 'replicas', count: count(1) }))
  onClick('clear', () => ({ do: 'clear' }))
  // A refusal changes no view, and the browser has changed the box.
  const undo = () => {
    const view = latest()
    if (view) showControls(view)
  }
  onToggle('affinity', (on) => ({ do: 'affinity', on }), undo)
  const policy = (on: boolean) => (on ? 'Local' : 'Cluster')
  onToggle('internal', (on) => ({ do: 'policy', side: 'internal', value: policy(on) }), undo)
  onToggle('external', (on) => ({ do: 'policy', side: 'external', value: policy(on) }), undo)
  byId('ranges-row').addEventListener('submit', (event) => {
    event.preventDefault()
    const box = byId('ranges')
    const text = box instanceof HTMLInputElement ? box.value : ''
    const ranges = text.split(/[\s,]+/).filter((range) => range !== '')
    void send({ do: 'ranges', ranges })
  })
}
