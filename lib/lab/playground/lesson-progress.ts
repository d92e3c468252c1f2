import { ConfigError } from '../../errors.js'
import { lessons, type Lesson, type Task } from './lessons.js'
import { predictions } from './lesson-predictions.js'
import type { LessonFacts } from './lesson-checks.js'
import type { LessonView, TaskView } from '../../page/learning-view.js'
import type { LogEntry, Sender } from '../../page/view.js'

/** More requests than any task asks for. */
const entriesKept = 1000

/** What a lesson needs to know about the cluster. LessonProgress knows the rest. */
export type ClusterFacts = Omit<LessonFacts, 'entries' | 'podsAtStart'>

/** Where the learner is: one lesson at a time, its tasks one after the other. */
export class LessonProgress {
  readonly #modes: readonly string[]
  readonly #senders: readonly Sender[]
  /** How many tasks of each lesson are done. */
  readonly #done = new Map<string, number>()
  /** The expected answers, by lesson and task. */
  readonly #expected = new Map<string, number>()
  #active: Lesson | undefined
  #podsAtStart: ReadonlySet<string> = new Set()
  #entries: LogEntry[] = []

  constructor(modes: readonly string[], senders: readonly Sender[]) {
    this.#modes = modes
    this.#senders = senders
  }

  /**
   * Begins a lesson, from its first task or a later step. Without a lesson, ends the current one.
   */
  begin(lesson: Lesson | undefined, facts: ClusterFacts, step = 0): void {
    this.#active = lesson
    this.#entries = []
    this.#podsAtStart = new Set(facts.pods.map(({ name }) => name))
    for (const key of [...this.#expected.keys()]) {
      if (lesson && key.startsWith(`${lesson.id}/`)) this.#expected.delete(key)
    }
    if (lesson) this.#done.set(lesson.id, Math.min(step, this.#tasksOf(lesson).length - 1))
    this.look(facts)
  }

  /** Notes what the learner expects of the task under way. */
  predict(choice: number): void {
    const id = this.#active?.id ?? ''
    const done = this.#done.get(id) ?? 0
    if (choice >= (predictions[`${id}/${done}`]?.choices.length ?? 0)) {
      throw new ConfigError('say what to expect: the task under way does not ask this')
    }
    this.#expected.set(`${id}/${done}`, choice)
  }

  recorded(entry: LogEntry): void {
    if (!this.#active) return
    this.#entries.push(entry)
    if (this.#entries.length > entriesKept) this.#entries.shift()
  }

  /** Checks after a change whether the current task is done. */
  look(facts: ClusterFacts): void {
    const lesson = this.#active
    if (!lesson) return
    const tasks = this.#tasksOf(lesson)
    for (;;) {
      const done = this.#done.get(lesson.id) ?? 0
      const seen = { ...facts, entries: this.#entries, podsAtStart: this.#podsAtStart }
      if (!tasks[done]?.isDone(seen)) return
      this.#done.set(lesson.id, done + 1)
      // Requests of one task do not count for the next.
      this.#entries = []
    }
  }

  /** The tasks that the modes of this playground allow. */
  #tasksOf({ tasks }: Lesson): readonly Task[] {
    return tasks.filter(({ mode }) => mode === undefined || this.#modes.includes(mode))
  }

  #predictionOf(task: string): Pick<TaskView, 'prediction'> {
    const prediction = predictions[task]
    const chosen = this.#expected.get(task) ?? null
    return prediction ? { prediction: { ...prediction, chosen } } : {}
  }

  get view(): readonly LessonView[] {
    return lessons.map((lesson) => {
      const { id, title, story, moral } = lesson
      const done = this.#done.get(id) ?? 0
      const tasks = this.#tasksOf(lesson)
      return {
        ...{ id, title, story, moral },
        missing: missingWords(lesson, [...this.#modes, ...this.#senders]),
        tasks: tasks.map(({ words }, index): TaskView => ({
          words,
          isDone: index < done,
          ...this.#predictionOf(`${id}/${index}`),
        })),
        isActive: lesson === this.#active,
        isDone: done === tasks.length,
      }
    })
  }
}

/** The modes and senders that a lesson needs and that are missing here. */
export function missingWords(
  { needs = [] }: Pick<Lesson, 'needs'>,
  here: readonly string[],
): string {
  const words = needs
    .filter((group) => !group.some((one) => here.includes(one)))
    .map((group) =>
      group.includes('outside') ? 'a sender from outside' : `${group.join(' or ')} mode`,
    )
  return words.length === 0 ? '' : `needs ${words.join(' and ')}`
}
