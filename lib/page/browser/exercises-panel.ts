import { byId, element, keptButton, drawIfChanged, updateChildren } from './element.js'
import { send } from './controls.js'
import { lessonLine, titleOf } from './lessons-panel.js'
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
            ...exercises.map((each, index) =>
              lessonLine(each, index, () => void send({ do: 'exercise', id: each.id })),
            ),
          ]),
    )
  })
}

function exercisePart(exercise: ExerciseView, all: readonly ExerciseView[]): readonly Node[] {
  const number = all.indexOf(exercise) + 1
  const { id, story, hints, missing, report, isDone, moral } = exercise
  const next = all[number]
  const begin = (each: string) => () => void send({ do: 'exercise', id: each })
  const onward =
    isDone && next ? [keptButton('next', `next: ${next.title}`, begin(next.id), 'primary')] : []
  const check = keptButton(
    'check',
    'check',
    () => void send({ do: 'check' }),
    isDone && next ? '' : 'primary',
  )
  const buttons = element(
    'p',
    'lesson-buttons',
    ...onward,
    check,
    keptButton('again', 'break it again', begin(id)),
    keptButton('all', 'all exercises', begin('')),
  )
  buttons.dataset['key'] = 'buttons'
  const said = element('p', isDone ? 'moral' : 'report', report)
  said.setAttribute('role', 'status')
  said.dataset['key'] = 'report'
  return [
    titleOf(exercise, number),
    element('p', 'story', story),
    ...(missing === ''
      ? []
      : [element('p', 'missing', `This exercise ${missing}, which is not available here.`)]),
    ...hints.map((words, index) => hintPart(id, words, index)),
    said,
    ...(isDone ? [element('p', 'moral', moral)] : []),
    buttons,
  ]
}

function hintPart(exercise: string, words: string, index: number): Node {
  const key = `${exercise} hint ${index}`
  const part = element('details', 'tip', element('summary', '', `hint ${index + 1}`), words)
  part.dataset['key'] = key
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
