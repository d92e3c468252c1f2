import {
  button,
  byId,
  element,
  keptButton,
  keyed,
  drawIfChanged,
  updateChildren,
} from './element.js'
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
        : lessons.map((each, index) => lessonLine(each, index, 'lesson'))),
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
  const first = `First say what you expect. ${question}`
  return keyed('expected', element('li', 'expected', first, keyed('choices', group)))
}

type Kind = 'lesson' | 'exercise'
/** What lessons and exercises have in common. */
type Begun = Omit<LessonView, 'tasks' | 'isActive'>

const begin = (kind: Kind, id: string) => () => void send({ do: kind, id })

/** One line in the list of lessons or exercises. A click begins it. */
export function lessonLine({ id, title, isDone, missing }: Begun, index: number, kind: Kind): Node {
  const one = button('', begin(kind, id))
  one.append(
    element('span', 'lesson-number', isDone ? '✓' : String(index + 1)),
    element('span', '', title, ...(missing === '' ? [] : [element('span', 'soft', missing)])),
  )
  one.className = `lesson${isDone ? ' done' : ''}`
  return keyed(id, one)
}

interface BegunPart {
  readonly kind: Kind
  readonly again: string
  readonly body: readonly Node[]
  /** Buttons of its own; `hasNext` if there is one that leads on. */
  readonly buttons: (hasNext: boolean) => readonly Node[]
}

/** The lesson or exercise under way: its story, its own part, and how to go on. */
export function begunPart(
  each: Begun,
  all: readonly Begun[],
  { kind, again, body, buttons }: BegunPart,
): readonly Node[] {
  const { id, title, story, missing, isDone, moral } = each
  const number = all.indexOf(each) + 1
  const next = isDone ? all[number] : undefined
  // The title takes the focus when it begins, because the button that began it is gone.
  const heading = element('h3', '', `${number}. ${title}`)
  heading.tabIndex = -1
  const below = element(
    'p',
    'lesson-buttons',
    ...(next ? [keptButton('next', `next: ${next.title}`, begin(kind, next.id), 'primary')] : []),
    ...buttons(next !== undefined),
    keptButton('again', again, begin(kind, id)),
    keptButton('all', `all ${kind}s`, begin(kind, '')),
  )
  return [
    keyed(`title ${id}`, heading),
    element('p', 'story', story),
    ...(missing === ''
      ? []
      : [element('p', 'missing', `This ${kind} ${missing}, which is not available here.`)]),
    ...body,
    ...(isDone ? [element('p', 'moral', moral)] : []),
    keyed('buttons', below),
  ]
}

function lessonPart(lesson: LessonView, all: readonly LessonView[]): readonly Node[] {
  const current = lesson.tasks.findIndex(({ isDone }) => !isDone)
  const tasks = lesson.tasks.flatMap(({ words, isDone, prediction }, index) => {
    const mark = element('span', 'mark', isDone ? '✓' : String(index + 1))
    const part = element('li', isDone ? 'done' : index === current ? 'current' : '', mark, words)
    if (isDone) part.setAttribute('aria-label', `done: ${words}`)
    const asked = prediction && predictionPart(prediction, isDone, index === current)
    return asked ? [part, asked] : [part]
  })
  const done = current === -1 ? lesson.tasks.length : current
  const goBack = () => void send({ do: 'lesson', id: lesson.id, step: done - 1 })
  return begunPart(lesson, all, {
    ...{ kind: 'lesson', again: 'start again' },
    body: [keyed('tasks', element('ol', 'tasks', ...tasks))],
    buttons: () => (done > 0 ? [keptButton('back', 'one step back', goBack)] : []),
  })
}
