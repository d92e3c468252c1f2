import type { LessonFacts } from './lesson-checks.js'

/** With one of three pods dark, so many answers in a row come by chance once in 3,000 times. */
const inARow = 20

/** A machine loses its power. Who notices, and when? */
export const darkLesson = {
  id: 'dark',
  title: 'A pod goes dark',
  story:
    'A machine that loses its power says no goodbye. Kubernetes takes 40 seconds and more to notice that its pods are gone. Until then they count as ready, and every mode sends connections to them.',
  needs: [['userspace'], ['iptables', 'nftables']] as const,
  tasks: [
    {
      words:
        'Let a pod go dark: kubectl annotate pod NAME playground/process=dark, or add that annotation to the YAML of a pod. It still counts as ready. In iptables or nftables mode send until a request gets no answer.',
      isDone: someGetNoAnswer,
    },
    {
      words: `Switch to userspace mode and send ${inARow} requests: all are answered. The first wait for a moment, because the proxy tries the next pod when one does not answer.`,
      isDone: allAnswered(['userspace']),
    },
    {
      words: `Back in iptables or nftables mode, let this node check: kubectl annotate service web kube-proxy-ts/health-check=tcp kube-proxy-ts/health-check-interval=1s. After three failures the pod is failing, and nobody is sent there: send until ${inARow} in a row are answered.`,
      isDone: allAnswered(['iptables', 'nftables']),
    },
  ],
  moral:
    'Rules in the kernel send packets and never learn what became of them. A proxy sees that a pod does not answer; rules need somebody who checks.',
}

/** Whether the pod is ready for Kubernetes, even if the checks of this node fail. */
const isReady = ({ state }: LessonFacts['pods'][number]) => state === 'ready' || state === 'failing'

function someGetNoAnswer({ entries, pods }: LessonFacts): boolean {
  const byRules = entries.filter(({ mode }) => mode === 'iptables' || mode === 'nftables')
  return pods.some(isReady) && byRules.some(({ answer }) => answer === 'dropped')
}

/** The last requests in one of these modes, although a pod that counts as ready is silent. */
function allAnswered(modes: readonly string[]): (facts: LessonFacts) => boolean {
  return ({ entries, pods }) => {
    const last = entries.slice(-inARow)
    const answered = new Set(last.map(({ answer }) => answer))
    return (
      last.length === inARow &&
      last.every(({ mode, isAnswered }) => isAnswered && modes.includes(mode)) &&
      pods.filter(isReady).some(({ name }) => !answered.has(name))
    )
  }
}
