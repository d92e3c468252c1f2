import { byId, element, drawIfChanged, shortName } from './element.js'
import type { LogEntry, View } from '../view.js'

/** The answers of each pod, and the latest requests one by one. */
export function showTraffic(view: View): void {
  drawIfChanged('answers', [view.answers, view.asked], () => showAnswers(view))
  drawIfChanged('log', [view.log[0] ?? null, view.log.length], () => {
    showLog(view)
    // Nobody could hear anything else if each of those that go on were read out.
    if (!view.continuous) byId('said').textContent = saidOf(view.log[0])
  })
}

function showAnswers({ answers, asked, pods, isReadOnly }: View): void {
  const noun = isReadOnly ? 'connection' : 'request'
  const words = `${isReadOnly ? '' : 'to '}${asked} ${noun}${asked === 1 ? '' : 's'}`
  byId('asked').textContent = asked === 0 ? '' : words
  const rows = answers.map(({ name, count }) => {
    const bar = document.createElement('progress')
    bar.max = asked
    bar.value = count
    bar.setAttribute('aria-label', `${name}: ${count} of ${asked}`)
    const label = element(
      'span',
      pods.some((pod) => pod.name === name) ? '' : 'gone',
      shortName(name),
    )
    label.title = name
    return element('div', 'bar', label, bar, element('span', '', String(count)))
  })
  const nothing = isReadOnly
    ? 'There is no connection to this Service now.'
    : 'Nothing sent yet. Send a request and see which pod answers.'
  const hint = element('p', 'hint', nothing)
  byId('bars').replaceChildren(...(rows.length > 0 ? rows : [hint]))
}

function showLog({ log }: View): void {
  byId('log').replaceChildren(
    ...log.map((entry) =>
      element(
        'tr',
        '',
        element('td', '', String(entry.number)),
        element('td', `in ${entry.mode}`, entry.mode),
        element('td', '', `${entry.sender} → ${entry.target}`),
        element('td', entry.isAnswered ? '' : 'lost', shortName(entry.answer)),
        ...(entry.isAnswered ? seenCells(entry) : [silenceCell(entry)]),
        element('td', '', entry.milliseconds?.toFixed(1) ?? '–'),
      ),
    ),
  )
}

function seenCells({ source, isSourceKept }: LogEntry): readonly Node[] {
  const word = isSourceKept ? 'kept' : 'lost'
  return [element('td', '', source), element('td', word, word)]
}

function silenceCell(entry: LogEntry): Node {
  const cell = element('td', '', sentWords(entry))
  cell.setAttribute('colspan', '2')
  return cell
}

/** Where a request was sent that nobody answered. */
function sentWords({ mode, sentTo }: LogEntry): string {
  if (sentTo?.length) return `sent to ${sentTo.map(shortName).join(', then ')}`
  if (sentTo) return 'no pod got it'
  return mode === 'userspace'
    ? 'kube-proxy took it; it does not tell which pods it tried'
    : 'nothing tells which pod it was sent to'
}

/** The latest request in words, for a screen reader. */
function saidOf(entry: LogEntry | undefined): string {
  if (!entry) return ''
  const { number, answer, isAnswered, source, isSourceKept } = entry
  if (!isAnswered) return `Request ${number}: ${answer}, ${sentWords(entry)}.`
  const who = isSourceKept ? 'the sender itself' : 'an address of the node'
  return `Request ${number}: ${shortName(answer)} answered. It saw ${source}, ${who}.`
}
