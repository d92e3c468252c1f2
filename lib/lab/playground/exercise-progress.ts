import type { TestBed } from './test-bed.js'
import { exercises, fromPod, type Exercise } from './exercises.js'
import { missingWords } from './lesson-progress.js'
import { ConfigError } from '../../errors.js'
import type { ExerciseView } from '../../page/learning-view.js'
import type { TargetView } from '../../page/view.js'
import type { FlowResult } from '../world/agent-protocol.js'
import type { TrafficRequest } from './traffic.js'
import type { ModeName } from '../../config/config.js'

export interface ExerciseDeps {
  readonly modes: readonly ModeName[]
  readonly testBed: Pick<TestBed, 'layout' | 'flow'>
  /** Where the Service is asked; undefined when it was deleted. */
  readonly addressOf: (
    target: TargetView['name'],
  ) => Pick<TrafficRequest, 'destination' | 'port'> | undefined
}

/** The number of requests. Chance hides one bad endpoint of four only once in 30,000 times. */
const asked = 36
const timeoutMs = 700

/** Which exercise is under way, and whether it is solved: real requests decide. */
export class ExerciseProgress {
  readonly #deps: ExerciseDeps
  readonly #solved = new Set<string>()
  #active: Exercise | undefined
  #isSet = false
  #report = ''

  constructor(deps: ExerciseDeps) {
    this.#deps = deps
  }

  begin(exercise: Exercise | undefined): void {
    this.#active = exercise
    this.#isSet = false
    this.#report = 'Setting the scene …'
    if (exercise) this.#solved.delete(exercise.id)
  }

  /** The scene of the exercise is set, so it can be checked. */
  ready(): void {
    this.#isSet = true
    this.#report = ''
  }

  /** Asks as the client of the exercise does, and counts the answers. */
  async check(): Promise<void> {
    const exercise = this.#active
    if (!exercise) throw new ConfigError('check the exercise: none is under way; choose one first')
    if (!this.#isSet)
      throw new ConfigError(`check exercise ${exercise.id}: wait until its scene is set`)
    const { from, to } = exercise.ask ?? fromPod
    const address = this.#addressOf(exercise)
    if (address === undefined) {
      this.#report = `The Service has no ${to} address for the client any more.`
    } else {
      const request = { protocol: 'TCP', ...address, count: asked, timeoutMs } as const
      const results = await this.#deps.testBed.flow(
        from === 'backend' ? 'client-pod' : from,
        request,
      )
      const isSolved = results.length > 0 && results.every(({ backend }) => backend !== undefined)
      // Another exercise may have begun meanwhile.
      if (this.#active !== exercise) return
      if (isSolved) this.#solved.add(exercise.id)
      else this.#solved.delete(exercise.id)
      const at = `${address.host}:${address.port}`
      this.#report = `${isSolved ? 'Solved' : 'Not yet'}: of ${results.length} requests from ${words[from]} to ${at}, ${counted(results)}.`
    }
  }

  #addressOf({
    ask = fromPod,
  }: Exercise): { readonly host: string; readonly port: number } | undefined {
    const { addressOf, testBed } = this.#deps
    const address = addressOf(ask.to)
    if (!address) return undefined
    const host = address.destination
    const port = ask.port?.(testBed.layout) ?? address.port
    return host === '' || host === 'None' || port === 0 ? undefined : { host, port }
  }

  get view(): readonly ExerciseView[] {
    const { modes, testBed } = this.#deps
    return exercises.map((exercise) => {
      const { id, title, story, hints, moral } = exercise
      const isActive = exercise === this.#active
      return {
        ...{ id, title, story, hints, moral, isActive },
        missing: missingWords(exercise, [...modes, ...testBed.layout.senders]),
        isDone: this.#solved.has(id),
        report: isActive ? this.#report : '',
      }
    })
  }
}

const words = {
  'client-pod': 'a pod',
  node: 'the node',
  outside: 'outside',
  backend: 'a pod',
} as const

const outcomes: Readonly<Record<string, string>> = {
  reply: 'were answered',
  refused: 'were refused',
  unreachable: 'were unreachable',
  closed: 'were closed without an answer',
  dropped: 'got no answer',
}

function counted(results: readonly FlowResult[]): string {
  const counts = new Map<string, number>()
  for (const { outcome } of results) counts.set(outcome, (counts.get(outcome) ?? 0) + 1)
  const parts = [...counts].map(([outcome, count]) => `${count} ${outcomes[outcome] ?? outcome}`)
  return parts.join(' and ')
}
