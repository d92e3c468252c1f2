import type { LogEntry, PodView, ServiceView } from '../../page/view.js'

/** What a lesson can see: the state of things, and the requests since its current task began. */
export interface LessonFacts {
  readonly mode: string
  readonly scheduler: string
  readonly service: ServiceView
  readonly pods: readonly PodView[]
  readonly replicas: number
  /** Names of the pods when the lesson began. */
  readonly podsAtStart: ReadonlySet<string>
  readonly rulesMode: string
  readonly rules: readonly string[]
  /** Oldest first. */
  readonly entries: readonly LogEntry[]
}

type Check = (facts: LessonFacts) => boolean

export function runsIn(mode: string): Check {
  return (facts) => facts.mode === mode
}

export function everybodyAnswered(facts: LessonFacts): boolean {
  const ready = namesOf(readyPods(facts))
  const answered = new Set(answeredIn(facts).map(({ answer }) => answer))
  return ready.length > 0 && ready.every((name) => answered.has(name))
}

export function successorAnswered(facts: LessonFacts): boolean {
  return answeredIn(facts).some(({ answer }) => !facts.podsAtStart.has(answer))
}

/** Two rounds in the same order, with every pod once in each. */
export function strictTurns(facts: LessonFacts): boolean {
  const count = readyPods(facts).length
  const last = facts.entries.filter(({ mode }) => mode === 'userspace').slice(-2 * count)
  if (count < 2 || last.length < 2 * count) return false
  const round = last.slice(0, count)
  return (
    new Set(round.map(({ answer }) => answer)).size === count &&
    round.every(({ answer }, index) => last[index + count]?.answer === answer)
  )
}

/** Whether a pod saw a request of the client pod as coming from it, or from the node. */
export function sourceSeen(isKept: boolean): Check {
  return (facts) =>
    answeredIn(facts).some(
      ({ sender, isSourceKept }) => sender === 'client-pod' && isSourceKept === isKept,
    )
}

export function hundredIn(wanted: string): Check {
  return (facts) => answeredIn(facts).filter(({ mode }) => mode === wanted).length >= 100
}

/** At least a hundred answers, and each pod's share is even within five standard deviations. */
export function evenShares(count: number): Check {
  return (facts) => {
    const ready = namesOf(readyPods(facts))
    const entries = answeredIn(facts).filter(({ mode }) => mode === 'iptables')
    const share = 1 / count
    if (ready.length !== count || facts.replicas !== count) return false
    const own = entries.filter(({ answer }) => ready.includes(answer))
    if (own.length < 100) return false
    const allowed = 5 * Math.sqrt(own.length * share * (1 - share))
    return ready.every((name) => {
      const got = own.filter(({ answer }) => answer === name).length
      return Math.abs(got - own.length * share) <= allowed
    })
  }
}

export function schedulerIs(wanted: string): Check {
  return ({ scheduler, rulesMode, rules }) =>
    scheduler === wanted &&
    rulesMode === 'ipvs' &&
    rules.some((line) => line.startsWith('-A -') && line.includes(` -s ${wanted}`))
}

export function onePodOnly(count: number): Check {
  return (facts) => {
    const last = answeredIn(facts)
      .filter(({ mode }) => mode === 'ipvs')
      .slice(-count)
    return last.length === count && new Set(last.map(({ answer }) => answer)).size === 1
  }
}

/**
 * Whether the rules have so many endpoints. A rule of the Service chooses from them. For a Service
 * with only a ClusterIP they are elements of the shared map.
 */
export function endpointsInRules(count: number): Check {
  return (facts) =>
    readyPods(facts).length === count &&
    facts.rulesMode === 'nftables' &&
    facts.rules.some(
      (line) => line.includes(`numgen random mod ${count} `) || targetsIn(line).size === count,
    )
}

export function showsRules(mode: string, text: string): Check {
  return ({ rulesMode, rules }) => rulesMode === mode && rules.some((line) => line.includes(text))
}

/** Whether one line of the eBPF maps has so many endpoints. */
export function endpointsAtSockets(count: number): Check {
  return (facts) =>
    readyPods(facts).length === count &&
    facts.rulesMode === 'ebpf' &&
    facts.rules.some((line) => (/: one of (.*)/.exec(line)?.[1] ?? '').split(', ').length === count)
}

const targetsIn = (line: string) =>
  new Set(Array.from(line.matchAll(/ : (\S+) \. \d+/g), ([, ip]) => ip))

export function outsideSource(isKept: boolean): Check {
  return (facts) =>
    answeredIn(facts).some(
      ({ sender, target, isSourceKept }) =>
        sender === 'outside' &&
        target.endsWith(`:${facts.service.nodePort}`) &&
        isSourceKept === isKept,
    ) && facts.service.externalPolicy === (isKept ? 'Local' : 'Cluster')
}

/** Whether the source ranges of the load balancer let a request in, or kept it out. */
export function byRanges(isLetIn: boolean): Check {
  return ({ entries, service }) => {
    const address = `${service.loadBalancerIp}:${service.port}`
    return entries.some(
      ({ sender, target, isAnswered }) =>
        service.sourceRanges.length > 0 &&
        sender === 'outside' &&
        target === address &&
        isAnswered === isLetIn,
    )
  }
}

export function refused(facts: LessonFacts): boolean {
  return facts.replicas === 0 && facts.entries.some(({ answer }) => answer === 'refused')
}

export function hairpin(facts: LessonFacts): boolean {
  const [only, ...others] = namesOf(readyPods(facts))
  return (
    others.length === 0 &&
    answeredIn(facts).some(({ sender, answer }) => sender === 'backend' && answer === only)
  )
}

/** The same UDP client was answered by one pod, which is gone or going, and then by another. */
export function flowMoved(facts: LessonFacts): boolean {
  if (facts.service.protocol !== 'UDP') return false
  const own = answeredIn(facts).filter(({ target }) => target.endsWith(`:${facts.service.port}`))
  const staying = new Set(namesOf(readyPods(facts)))
  const last = own.at(-1)
  const isNew = last !== undefined && staying.has(last.answer)
  return isNew && own.some(({ answer }) => answer !== last.answer && !staying.has(answer))
}

export function someGetNoAnswer({ entries, pods }: LessonFacts): boolean {
  const byRules = entries.filter(({ mode }) => mode === 'iptables' || mode === 'nftables')
  return pods.some(countsAsReady) && byRules.some(({ answer }) => answer === 'dropped')
}

/** The last requests, all in these modes, although a pod that counts as ready is silent. */
export function allAnswered(count: number, modes: readonly string[]): Check {
  return ({ entries, pods }) => {
    const last = entries.slice(-count)
    const answered = new Set(last.map(({ answer }) => answer))
    return (
      last.length === count &&
      last.every(({ mode, isAnswered }) => isAnswered && modes.includes(mode)) &&
      pods.filter(countsAsReady).some(({ name }) => !answered.has(name))
    )
  }
}

/** Whether the pod is ready for Kubernetes, even if the checks of this node fail. */
function countsAsReady({ state }: PodView): boolean {
  return state === 'ready' || state === 'failing'
}

function answeredIn({ entries }: LessonFacts): readonly LogEntry[] {
  return entries.filter(({ isAnswered }) => isAnswered)
}

function readyPods({ pods }: LessonFacts): readonly PodView[] {
  return pods.filter(({ state }) => state === 'ready')
}

function namesOf(pods: readonly PodView[]): readonly string[] {
  return pods.map(({ name }) => name)
}
