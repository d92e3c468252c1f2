/** What a learner of the playground sees and has done: lessons with their tasks, and exercises. */
export interface LessonView {
  readonly id: string
  readonly title: string
  /** Why it matters, in two or three sentences. */
  readonly story: string
  /** Such as `needs iptables mode`, if that cannot run here; else empty. */
  readonly missing: string
  readonly tasks: readonly TaskView[]
  readonly isActive: boolean
  readonly isDone: boolean
  /** What was learned; shown when done. */
  readonly moral: string
}

export interface TaskView {
  readonly words: string
  readonly isDone: boolean
  readonly prediction?: PredictionView
}

/** A question that a learner answers before doing the task. */
export interface PredictionView {
  readonly question: string
  readonly choices: readonly string[]
  /** The index of the choice that comes true. */
  readonly right: number
  /** Null while the learner has chosen none. */
  readonly chosen: number | null
}

/** Something broken on purpose, to be found and mended. */
export interface ExerciseView {
  readonly id: string
  readonly title: string
  readonly story: string
  /** Each says more than the one before. */
  readonly hints: readonly string[]
  /** As in `LessonView`. */
  readonly missing: string
  readonly isActive: boolean
  readonly isDone: boolean
  /** What the last check has found; empty before. */
  readonly report: string
  readonly moral: string
}
