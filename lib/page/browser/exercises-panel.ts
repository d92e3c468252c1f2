import { byId, element, keptButton, keyed, drawIfChanged, updateChildren } from './element.js'
import { send } from './controls.js'
import { begunPart, lessonLine } from './lessons-panel.js'
import type { ExerciseView } from '../learning-view.js'
import type { View } from '../view.js'

/** The list of exercises, or the one under way with its hints and its check. */
export function showExercises({ exercises }: View): void {
  drawIfChanged('exercises', exercises, () => {
    const done = exercises.filter(({ isDone }) => isDone).length
    byId('exercises-done').textContent = `${done} of ${exercises.length} solved`
    const active = exercises.find(({ isActive }) => isActive)
    updateChildren(
      byId('exercises'),
      ...(active
        ? exercisePart(active, exercises)
        : [
            element('p', 'hint', 'The Service does not answer. Find out why, and mend it.'),
            ...exercises.map((each, index) => lessonLine(each, index, 'exercise')),
          ]),
    )
  })
}

function exercisePart(exercise: ExerciseView, all: readonly ExerciseView[]): readonly Node[] {
  const { id, hints, report, isDone } = exercise
  const said = keyed('report', element('p', isDone ? 'moral' : 'report', report))
  said.setAttribute('role', 'status')
  const check = () => void send({ do: 'check' })
  return begunPart(exercise, all, {
    ...{ kind: 'exercise', again: 'break it again' },
    body: [...hints.map((words, index) => hintPart(id, words, index)), said],
    buttons: (hasNext) => [keptButton('check', 'check', check, hasNext ? '' : 'primary')],
  })
}

function hintPart(exercise: string, words: string, index: number): Node {
  const key = `${exercise} hint ${index}`
  const summary = element('summary', '', `hint ${index + 1}`)
  const part = keyed(key, element('details', 'tip', summary, words))
  // A hint that the reader has opened stays open.
  const wasOpen = document.querySelector(`[data-key="${key}"]`)?.hasAttribute('open') ?? false
  part.toggleAttribute('open', wasOpen)
  return part
}

/** Called once. */
export function connectTabs(): void {
  for (const name of tabs) byId(`show-${name}`).addEventListener('click', () => showTab(name))
}

const tabs = ['lessons', 'exercises'] as const
let opened = ''

/** Shows the tab of a lesson or exercise when it begins. */
export function followActive({ lessons, exercises }: View): void {
  const isActive = (each: { readonly isActive: boolean }) => each.isActive
  const name = lessons.some(isActive) ? 'lessons' : exercises.some(isActive) ? 'exercises' : ''
  if (name !== '' && name !== opened) showTab(name)
  opened = name
}

function showTab(wanted: (typeof tabs)[number]): void {
  for (const name of tabs) {
    byId(`show-${name}`).setAttribute('aria-pressed', String(name === wanted))
    byId(name).hidden = name !== wanted
    byId(`${name}-done`).hidden = name !== wanted
  }
}
