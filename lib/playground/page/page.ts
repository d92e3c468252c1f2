import { byId, element } from './element.js'
import { drawPicture, percent, shortName } from './picture.js'
import type { HopView, PageCommand, PodView, View, WayView } from '../view.js'

const narrowScreen = matchMedia('(max-width: 760px)')
let latest: View | undefined

async function send(command: PageCommand): Promise<void> {
  const error = byId('error')
  const response = await fetch('/command', {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(command),
  }).catch(() => undefined)
  error.hidden = response?.ok === true
  error.textContent = response ? await response.text() : 'The playground has ended.'
}

function onClick(id: string, command: () => PageCommand): void {
  byId(id).addEventListener('click', () => void send(command()))
}

/** Buttons of which one is pressed; kept while they stay the same, or focus would be lost. */
function choices(
  id: string,
  names: readonly (readonly [value: string, words: string])[],
  current: string,
  choose: (value: string) => PageCommand | undefined,
): void {
  const group = byId(id)
  const key = JSON.stringify(names)
  if (group.dataset['key'] !== key) {
    group.dataset['key'] = key
    group.querySelectorAll('button').forEach((button) => button.remove())
    for (const [value, words] of names) {
      const button = element('button', '', words)
      button.dataset['value'] = value
      button.addEventListener('click', () => {
        const command = choose(value)
        if (command) void send(command)
      })
      group.append(button)
    }
  }
  for (const button of group.querySelectorAll('button')) {
    button.setAttribute('aria-pressed', String(button.dataset['value'] === current))
  }
}

function setChecked(id: string, isOn: boolean): void {
  const box = byId(id)
  if (box instanceof HTMLInputElement) box.checked = isOn
}

function onToggle(id: string, command: (isOn: boolean) => PageCommand): void {
  const box = byId(id)
  box.addEventListener('change', () => {
    if (box instanceof HTMLInputElement) void send(command(box.checked))
  })
}

/** Parts are drawn again only when what they show has changed. */
const shown = new Map<string, string>()

function redraw(part: string, value: unknown, draw: () => void): void {
  const key = JSON.stringify(value)
  if (shown.get(part) === key) return
  shown.set(part, key)
  draw()
}

function show(view: View): void {
  latest = view
  const { busy, mode, path, service } = view
  byId('status').textContent = busy === '' ? `Running in ${mode} mode` : `${busy} …`
  byId('status').className = busy === '' ? '' : 'busy'
  showControls(view)
  const { pods, sender, target } = view
  redraw('picture', [mode, path, pods, sender, target, narrowScreen.matches], () =>
    drawPicture(view, narrowScreen.matches),
  )
  redraw('path', path, () => showPath(view))
  redraw('answers', view.answers, () => showAnswers(view))
  redraw('pods', pods, () => byId('pods').replaceChildren(...pods.map(podRow)))
  redraw('log', view.log[0] ?? null, () => showLog(view))
  redraw('rules', [view.rules, view.lastChange, service.name], () => showRules(view))
  const lines = [`export KUBECONFIG=${view.kubeconfig}`, view.kubectl]
  redraw('kubectl', lines, () => byId('kubectl').replaceChildren(lines.join('\n')))
}

function showControls(view: View): void {
  const { modes, service } = view
  const asChoices = (names: readonly string[]) => names.map((name) => [name, name] as const)
  choices('modes', asChoices(modes), view.mode, (mode) => ({ do: 'mode', mode }))
  for (const button of byId('modes').querySelectorAll('button')) button.disabled = view.busy !== ''
  const senders = [
    ['client-pod', 'a pod'],
    ['node', 'the node'],
    ['outside', 'outside'],
  ] as const
  choices('senders', senders, view.sender, (value) => {
    const sender = senders.find(([name]) => name === value)?.[0]
    return sender && { do: 'sender', sender }
  })
  const targets = view.targets.map(({ name, address }) => [name, `${name} ${address}`] as const)
  choices('targets', targets, view.target.name, (value) => {
    const target = view.targets.find(({ name }) => name === value)?.name
    return target && { do: 'target', target }
  })
  byId('continuous').setAttribute('aria-pressed', String(view.continuous))
  byId('replicas').textContent = String(view.replicas)
  byId('fewer').toggleAttribute('disabled', view.replicas <= 0)
  byId('more').toggleAttribute('disabled', view.replicas >= 5)
  setChecked('affinity', service.affinity)
  setChecked('internal', service.internalPolicy === 'Local')
  setChecked('external', service.externalPolicy === 'Local')
}

function showPath({ path }: View): void {
  byId('hops').replaceChildren(...path.shared.map((hop) => element('li', '', ...hopParts(hop))))
  byId('ways').replaceChildren(
    ...(path.note === '' ? [] : [element('p', 'hint', path.note)]),
    ...path.ways.map((way, index) => wayPart(way, index === 0)),
  )
}

function hopParts({ where, rule, why }: HopView): readonly Node[] {
  return [
    element('div', 'where', where),
    ...(rule === '' ? [] : [element('code', '', rule)]),
    element('p', 'why', why),
  ]
}

function wayPart(way: WayView, isOpen: boolean): Node {
  const name = way.pod === '' ? '' : `${shortName(way.pod)}: `
  const title = `${percent(way.probability)}  ${name}${way.verdict}`
  if (way.hops.length === 0) return element('p', 'way', title)
  const part = element('details', 'way', element('summary', '', title))
  part.toggleAttribute('open', isOpen)
  part.append(element('ul', '', ...way.hops.map((hop) => element('li', '', ...hopParts(hop)))))
  return part
}

function showAnswers({ answers, asked }: View): void {
  byId('asked').textContent = asked === 0 ? '' : `to ${asked} requests`
  const rows = answers.map(({ name, count }) => {
    const bar = document.createElement('progress')
    bar.max = asked
    bar.value = count
    bar.setAttribute('aria-label', `${name}: ${count} of ${asked}`)
    const label = element('span', '', shortName(name))
    label.title = name
    return element('div', 'bar', label, bar, element('span', '', String(count)))
  })
  const hint = element('p', 'hint', 'Nothing sent yet.')
  byId('bars').replaceChildren(...(rows.length > 0 ? rows : [hint]))
}

function podRow({ name, ip, node, state }: PodView): Node {
  const kill = element('button', '', 'kill')
  kill.setAttribute('aria-label', `Kill pod ${name}`)
  kill.addEventListener('click', () => void send({ do: 'kill', pod: name }))
  kill.toggleAttribute('disabled', state === 'terminating')
  const where = element('span', '', `${ip} ${node}`)
  return element(
    'li',
    '',
    element('span', '', shortName(name)),
    where,
    element('span', state, state),
    kill,
  )
}

function showLog({ log }: View): void {
  byId('log').replaceChildren(
    ...log.map((entry) =>
      element(
        'tr',
        '',
        element('td', '', String(entry.number)),
        element('td', '', entry.sender),
        element('td', entry.isAnswered ? '' : 'lost', shortName(entry.answer)),
        element('td', '', entry.source),
        element('td', '', entry.milliseconds.toFixed(1)),
      ),
    ),
  )
}

function showRules({ rules, lastChange, mode }: View): void {
  const count = (change: string) => rules.filter((line) => line.change === change).length
  const words = `${count('added')} lines came, ${count('removed')} went with the last change`
  const because = lastChange === '' ? '' : `; last command: ${lastChange}`
  byId('change').textContent =
    `${rules.length - count('removed')} lines in ${mode} mode. ${words}${because}.`
  const marks = { same: '  ', added: '+ ', removed: '- ' }
  byId('rules').replaceChildren(
    ...rules.map(({ text, change }) => element('span', change, marks[change] + text)),
  )
}

onClick('send-1', () => ({ do: 'send', count: 1 }))
onClick('send-100', () => ({ do: 'send', count: 100 }))
onClick('continuous', () => ({ do: 'continuous', on: latest?.continuous !== true }))
onClick('fewer', () => ({ do: 'replicas', count: Math.max(0, (latest?.replicas ?? 1) - 1) }))
onClick('more', () => ({ do: 'replicas', count: Math.min(5, (latest?.replicas ?? 0) + 1) }))
onClick('clear', () => ({ do: 'clear' }))
onToggle('affinity', (on) => ({ do: 'affinity', on }))
onToggle('internal', (on) => ({ do: 'policy', side: 'internal', value: on ? 'Local' : 'Cluster' }))
onToggle('external', (on) => ({ do: 'policy', side: 'external', value: on ? 'Local' : 'Cluster' }))
narrowScreen.addEventListener('change', () => {
  if (latest) show(latest)
})

const events = new EventSource('/events')
events.addEventListener('message', ({ data }: MessageEvent<string>) => {
  show(JSON.parse(data) as View)
})
events.addEventListener('error', () => {
  byId('status').textContent = 'The playground has ended or does not answer; waiting for it …'
})
