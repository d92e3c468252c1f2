import { Turns } from '../../async.js'
import { ConfigError } from '../../errors.js'
import { ExerciseProgress, type ExerciseDeps } from './exercise-progress.js'
import { LessonProgress, type ClusterFacts } from './lesson-progress.js'
import { areHere, sceneOf } from './lesson-scene.js'
import { exercises, type Exercise } from './exercises.js'
import { lessons, type Lesson } from './lessons.js'
import { untilTrue } from './until-true.js'
import type { PageCommand } from '../../page/page-command.js'
import type { PodView } from '../../page/view.js'
import type { Traffic } from './traffic.js'
import type { WebApp } from './web-app.js'

interface LearningDeps extends ExerciseDeps {
  readonly app: WebApp
  readonly traffic: () => Traffic
  readonly perform: (command: PageCommand) => Promise<void>
  readonly mode: () => string
  readonly pods: () => readonly PodView[]
  /** Whether the kernel has all that it should. */
  readonly isWritten: () => boolean
  readonly facts: () => ClusterFacts
  readonly refresh: () => void
  readonly replicas: number
  readonly signal: AbortSignal
}

type LearnCommand = Extract<
  PageCommand,
  { readonly do: 'lesson' | 'predict' | 'exercise' | 'check' }
>

/** Lessons and exercises: one is under way at a time, and each begins with its own scene. */
export class Learning {
  readonly lessons: LessonProgress
  readonly exercises: ExerciseProgress
  readonly #deps: LearningDeps
  /** Two pages of one playground may begin something at the same time. */
  readonly #scenes = new Turns()

  constructor(deps: LearningDeps) {
    this.#deps = deps
    this.lessons = new LessonProgress(deps.modes, deps.testBed.layout.senders)
    this.exercises = new ExerciseProgress(deps)
  }

  get view() {
    return { lessons: this.lessons.view, exercises: this.exercises.view }
  }

  async perform(command: LearnCommand): Promise<void> {
    switch (command.do) {
      case 'lesson': {
        const lesson = chosen(lessons, command)
        return this.#scenes.take(() => this.#beginLesson(lesson, command.step))
      }
      case 'predict':
        this.lessons.predict(command.choice)
        return
      case 'exercise': {
        const exercise = chosen(exercises, command)
        return this.#scenes.take(() => this.#beginExercise(exercise))
      }
      case 'check':
        return this.exercises.check()
    }
  }

  /** Brings the cluster to where the lesson begins, whatever was done before. */
  async #beginLesson(lesson: Lesson | undefined, step?: number): Promise<void> {
    const { facts, replicas } = this.#deps
    if (lesson) {
      this.exercises.begin(undefined)
      await this.#setScene(lesson.scene ?? [])
      await this.#settle((pods) => areHere(pods, replicas, 'ready'))
    }
    this.lessons.begin(lesson, facts(), step)
  }

  /** Breaks the cluster as the exercise says; without one, mends it. */
  async #beginExercise(exercise: Exercise | undefined): Promise<void> {
    const { app, testBed, replicas } = this.#deps
    this.exercises.begin(exercise)
    await this.#setScene(exercise?.commands ?? [])
    app.replace(exercise?.broken(testBed.layout) ?? [])
    await this.#settle((pods) => areHere(pods, exercise?.pods ?? replicas, 'ready', 'not ready'))
    this.exercises.ready()
  }

  /** Makes the cluster as it was at the start, then performs these commands. */
  async #setScene(scene: readonly PageCommand[]): Promise<void> {
    const { app, facts, modes, mode, perform, replicas, testBed } = this.#deps
    this.lessons.begin(undefined, facts())
    await perform({ do: 'continuous', on: false })
    app.reset(replicas, testBed.layout.ports)
    for (const command of sceneOf(scene, { modes, mode: mode() })) await perform(command)
  }

  async #settle(isThere: (pods: readonly PodView[]) => boolean): Promise<void> {
    const { isWritten, pods, refresh, signal, traffic } = this.#deps
    // The list must not have the pods that were replaced just now.
    refresh()
    await untilTrue(() => isWritten() && isThere(pods()), signal)
    traffic().clear()
    refresh()
  }
}

/** The lesson or exercise with the id of the command; undefined for the empty id, which ends it. */
function chosen<T extends { readonly id: string }>(
  all: readonly T[],
  { do: what, id }: { readonly do: string; readonly id: string },
): T | undefined {
  const found = all.find((each) => each.id === id)
  if (!found && id !== '') throw new ConfigError(`begin ${what} ${id}: there is no such ${what}`)
  return found
}
