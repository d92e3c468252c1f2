import { button, byId, element, keptButton, drawIfChanged, updateChildren } from './element.js'
import { send } from './controls.js'
import type { ExerciseView, LessonView, PredictionView } from '../learning-view.js'
import type { View } from '../view.js'

/** The list of lessons, or the one under way with its tasks. */
export function showLessons({ lessons, exercises }: View): void {
  byId('lessons-card').hidden = lessons.length === 0
  drawIfChanged('task', [lessons, exercises], () => showTask(lessons, exercises))
  drawIfChanged('lessons', lessons, () => {
    const done = lessons.filter(({ isDone }) => isDone).length
    byId('lessons-done').textContent = `${done} of ${lessons.length} done`
    const active = lessons.find(({ isActive }) => isActive)
    updateChildren(
      byId('lessons'),
      ...(active
        ? lessonPart(active, lessons)
        : lessons.map((each, index) =>
            lessonLine(each, index, () => void send({ do: 'lesson', id: each.id })),
          )),
    )
  })
}

/**
 * Repeats the task beside the controls, because on a narrow screen the lesson is far below them.
 */
function showTask(lessons: readonly LessonView[], exercises: readonly ExerciseView[]): void {
  const place = byId('task')
  const lesson = lessons.find(({ isActive }) => isActive)
  const exercise = exercises.find(({ isActive }) => isActive)
  const active = lesson ?? exercise
  place.hidden = active === undefined
  if (!active) return
  const words = lesson
    ? (lesson.tasks.find(({ isDone }) => !isDone)?.words ?? lesson.moral)
    : (exercise?.story ?? '')
  place.replaceChildren(element('strong', '', `${active.title}: `), words)
}

/** Before the task is done: its question. Afterwards: the expected answer and the right one. */
function predictionPart(
  { question, choices, right, chosen }: PredictionView,
  isDone: boolean,
  isCurrent: boolean,
): Node | undefined {
  const expected = choices[chosen ?? -1]
  if (isDone) {
    if (expected === undefined) return undefined
    const outcome = chosen === right ? 'and so it was' : `and it was: ${choices[right] ?? ''}`
    return element('li', 'expected', `${question} You expected: ${expected}, ${outcome}.`)
  }
  if (!isCurrent) return undefined
  const buttons = choices.map((words, index) => {
    const predict = () => void send({ do: 'predict', choice: index })
    const one = keptButton(`choice ${index}`, words, predict, 'small')
    one.setAttribute('aria-pressed', String(index === chosen))
    return one
  })
  const group = element('span', 'segmented', ...buttons)
  group.setAttribute('role', 'group')
  group.setAttribute('aria-label', question)
  group.dataset['key'] = 'choices'
  const part = element('li', 'expected', `First say what you expect. ${question}`, group)
  part.dataset['key'] = 'expected'
  return part
}

/** One line in the list of lessons or exercises. A click begins it. */
export function lessonLine(
  { id, title, isDone, missing }: Pick<LessonView, 'id' | 'title' | 'isDone' | 'missing'>,
  index: number,
  begin: () => void,
): Node {
  const one = button('', begin)
  one.append(
    element('span', 'lesson-number', isDone ? '✓' : String(index + 1)),
    element('span', '', title, ...(missing === '' ? [] : [element('span', 'soft', missing)])),
  )
  one.className = `lesson${isDone ? ' done' : ''}`
  one.dataset['key'] = id
  return one
}

/** It takes the focus when the lesson or exercise begins, because the button that began it is gone. */
export function titleOf({ id, title }: Pick<LessonView, 'id' | 'title'>, number: number): Node {
  const heading = element('h3', '', `${number}. ${title}`)
  heading.tabIndex = -1
  return keyed(`title ${id}`, heading)
}

function keyed(key: string, part: HTMLElement): HTMLElement {
  part.dataset['key'] = key
  return part
}

function lessonPart(lesson: LessonView, all: readonly LessonView[]): readonly Node[] {
  const number = all.indexOf(lesson) + 1
  const current = lesson.tasks.findIndex(({ isDone }) => !isDone)
  const tasks = lesson.tasks.flatMap(({ words, isDone, prediction }, index) => {
    const mark = element('span', 'mark', isDone ? '✓' : String(index + 1))
    const part = element('li', isDone ? 'done' : index === current ? 'current' : '', mark, words)
    if (isDone) part.setAttribute('aria-label', `done: ${words}`)
    const asked = prediction && predictionPart(prediction, isDone, index === current)
    return asked ? [part, asked] : [part]
  })
  const next = all[number]
  const { id, isDone } = lesson
  const begin = (each: string) => () => void send({ do: 'lesson', id: each })
  const done = current === -1 ? lesson.tasks.length : current
  const goBack = () => void send({ do: 'lesson', id, step: done - 1 })
  const behind = done > 0 ? [keptButton('back', 'one step back', goBack)] : []
  const again = keptButton('again', 'start again', begin(id))
  const end = keptButton('all', 'all lessons', begin(''))
  const onward =
    isDone && next ? [keptButton('next', `next: ${next.title}`, begin(next.id), 'primary')] : []
  const buttons = element('p', 'lesson-buttons', ...onward, ...behind, again, end)
  buttons.dataset['key'] = 'buttons'
  return [
    titleOf(lesson, number),
    element('p', 'story', lesson.story),
    ...(lesson.missing === ''
      ? []
      : [element('p', 'missing', `This lesson ${lesson.missing}, which is not available here.`)]),
    keyed('tasks', element('ol', 'tasks', ...tasks)),
    ...(isDone ? [element('p', 'moral', lesson.moral)] : []),
    buttons,
  ]
}
