import { comparedIn } from './compare-panel.js'
import { showRefusal } from './controls.js'
import { link } from './link.js'
import type { PageCommand } from '../page-command.js'
import type { ObjectLine, Sender, TargetView, View } from '../view.js'

/**
 * Keeps what the page shows in its address, so that a link shows the same. This is only for a
 * cluster in this browser, because a link must not change any other.
 */

const everything: ObjectLine = { apiVersion: 'v1', kind: 'List', namespace: '', name: 'all' }

/** The objects at the beginning. The address has objects only when they differ from these. */
let first: string | undefined
let lastWritten = ''

/** Makes the page show what its address says; called once. */
export async function openScene(): Promise<void> {
  // A link in a tab that has the page changes the fragment only. What the page itself writes does
  // not fire this.
  addEventListener('hashchange', () => location.reload())
  const wanted = new URLSearchParams(location.hash.slice(1))
  first = await link().yaml(everything)
  const objects = wanted.get('objects')
  const text = objects === null ? undefined : await unpacked(objects).catch(() => undefined)
  const refusals = objects === null || text !== undefined ? [] : ['its objects cannot be read']
  const asked = (key: string, command: (value: string) => PageCommand) => {
    const value = wanted.get(key)
    return value === null ? [] : [command(value)]
  }
  const commands: readonly PageCommand[] = [
    // A lesson or an exercise replaces all objects, so those of the address come after it.
    ...asked('lesson', (id) => ({ do: 'lesson', id, step: Number(wanted.get('step') ?? 0) })),
    ...asked('exercise', (id) => ({ do: 'exercise', id })),
    ...(text === undefined ? [] : [{ do: 'apply', yaml: text } as const]),
    ...asked('pods', (marks) => ({ do: 'marks', marks: marks.split(' ') })),
    ...asked('scheduler', (scheduler) => ({ do: 'scheduler', scheduler })),
    ...asked('mode', (mode) => ({ do: 'mode', mode })),
    ...asked('service', (service) => ({ do: 'select', service })),
    // The playground refuses names that it does not have.
    ...asked('from', (sender) => ({ do: 'sender', sender: sender as Sender })),
    ...asked('to', (target) => ({ do: 'target', target: target as TargetView['name'] })),
    ...asked('rules', (mode) => ({ do: 'rules', mode })),
    ...asked('compare', (modes) => ({ do: 'compare', modes: modes.split(' ') })),
  ]
  for (const command of commands) {
    const refused = await link().perform(command)
    if (refused !== undefined) refusals.push(refused)
  }
  // A link that was cut short must not pass for another cluster.
  if (refusals.length > 0) showRefusal(`This link shows only a part: ${refusals.join('; ')}.`)
  lastWritten = location.hash
}

let writing = Promise.resolve()

/** Writes what the page shows into the address; called for every view after `openScene`. */
export function writeScene(view: View): Promise<void> {
  // Packing takes time, so views wait for each other: the last one must be written last.
  writing = writing.catch(() => undefined).then(() => write(view))
  return writing
}

async function write(view: View): Promise<void> {
  if (view.busy !== '' || first === undefined) return
  const lesson = view.lessons.find(({ isActive }) => isActive)
  const exercise = view.exercises.find(({ isActive }) => isActive)
  const text = (await link().yaml(everything)) ?? ''
  const parts = new URLSearchParams({
    ...(text === first ? {} : { objects: await packed(text) }),
    ...(lesson ? { lesson: lesson.id } : {}),
    ...(lesson ? { step: String(lesson.tasks.filter(({ isDone }) => isDone).length) } : {}),
    ...(exercise ? { exercise: exercise.id } : {}),
    ...(view.scheduler === 'rr' ? {} : { scheduler: view.scheduler }),
    mode: view.mode,
    service: view.service.name,
    from: view.sender,
    to: view.target.name,
    rules: view.rules.mode,
    ...(view.marks.length === 0 ? {} : { pods: view.marks.join(' ') }),
    ...(view.comparison.length === 0 ? {} : { compare: comparedIn(view).join(' ') }),
  })
  const hash = `#${parts.toString()}`
  // An address that somebody else has changed is a link, and the page is about to be loaded anew.
  if (hash === lastWritten || location.hash !== lastWritten) return
  lastWritten = hash
  history.replaceState(null, '', hash)
}

/** A link of a megabyte could unpack to more than a browser has memory for. */
const longestText = 4 * 1024 * 1024

async function packed(text: string): Promise<string> {
  const bytes = await through(new TextEncoder().encode(text), new CompressionStream('deflate-raw'))
  // One by one: so many arguments of one call would be too many.
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(''))
    .replaceAll('+', '-')
    .replaceAll('/', '_')
}

async function unpacked(text: string): Promise<string> {
  const plain = atob(text.replaceAll('-', '+').replaceAll('_', '/'))
  const bytes = Uint8Array.from(plain, (char) => char.charCodeAt(0))
  return new TextDecoder().decode(await through(bytes, new DecompressionStream('deflate-raw')))
}

async function through(
  bytes: Uint8Array<ArrayBuffer>,
  stream: CompressionStream | DecompressionStream,
): Promise<Uint8Array> {
  let size = 0
  const bounded = new TransformStream<Uint8Array<ArrayBuffer>, Uint8Array<ArrayBuffer>>({
    transform(part, controller) {
      size += part.length
      if (size > longestText) controller.error(new Error('too long'))
      else controller.enqueue(part)
    },
  })
  const parts = new Blob([bytes]).stream().pipeThrough(stream).pipeThrough(bounded)
  return new Uint8Array(await new Response(parts).arrayBuffer())
}
