import * as check from './lesson-checks.js'
import type { LessonFacts } from './lesson-checks.js'
import type { ModeName } from '../../modes/registry.js'

/** One thing to do, and how the playground sees that it was done. */
export interface Task {
  readonly words: string
  readonly isDone: (facts: LessonFacts) => boolean
}

export interface Lesson {
  readonly id: string
  readonly title: string
  readonly story: string
  /** For each of these, one of the group has to be here. */
  readonly needs: readonly (readonly (ModeName | 'outside')[])[]
  /** `modes`: those that can run here. */
  readonly tasks: (modes: readonly string[]) => readonly Task[]
  readonly moral: string
}

/** The eight lessons, in the order of history. Data: what they check is in lesson-checks.ts. */
export const lessons: readonly Lesson[] = [
  {
    id: 'cluster-ip',
    title: 'What a ClusterIP is',
    story:
      'Pods come and go, and their addresses with them. A Service has one address that stays. No interface anywhere has it: the node of whoever asks turns it into the address of a pod.',
    needs: [],
    tasks: () => [
      {
        words: 'Send from a pod to the ClusterIP until every ready pod has answered.',
        isDone: check.everybodyAnswered,
      },
      {
        words: 'Terminate a pod. Send until its successor answers: the ClusterIP is the same.',
        isDone: check.successorAnswered,
      },
    ],
    moral: 'One address, whoever is behind it. kube-proxy keeps the translation up to date.',
  },
  {
    id: 'userspace',
    title: 'Userspace, the original',
    story:
      'The first kube-proxy was a proxy in the plain sense: rules hand every connection to a port of its own, and it makes a second one to a pod.',
    needs: [['userspace']],
    tasks: () => [
      { words: 'Switch to userspace mode.', isDone: check.runsIn('userspace') },
      {
        words: 'Send single requests, two rounds of them. The pods answer strictly in turn.',
        isDone: check.strictTurns,
      },
      {
        words: 'Send one more from a pod, and look in the log: the pod saw the node as sender.',
        isDone: check.sourceLost,
      },
    ],
    moral: 'Exact turn-taking and exact numbers, paid with a process in the way and a lost source.',
  },
  {
    id: 'iptables',
    title: 'Why iptables replaced it',
    story:
      'iptables can do the translation inside the kernel. kube-proxy then only writes rules, and no packet ever passes through it.',
    needs: [['userspace'], ['iptables']],
    tasks: () => [
      {
        words: 'In userspace mode send 100 requests, and look at the milliseconds.',
        isDone: check.hundredIn('userspace'),
      },
      {
        words: 'Switch to iptables mode and send 100 again.',
        isDone: check.hundredIn('iptables'),
      },
      {
        words: 'Send one from a pod: this time the pod saw who asked.',
        isDone: check.sourceKept('client-pod'),
      },
    ],
    moral: 'Faster, and the source stays. What is lost: turns are now by chance.',
  },
  {
    id: 'statistics',
    title: '1/3, 1/2, 1',
    story:
      'iptables has no list to choose from, only rules one after the other. With three pods the first rule takes 1/3 of the connections, the second 1/2 of the rest, the last one all that are left: a third each.',
    needs: [['iptables']],
    tasks: () => [
      {
        words: 'In iptables mode, with 3 pods ready, send 100: each gets about a third.',
        isDone: check.evenShares(3),
      },
      {
        words: 'Scale to 2. Read in the rules what became of 1/3 and 1/2, then send 100.',
        isDone: check.evenShares(2),
      },
    ],
    moral: 'Fair on average, and one more rule for every pod: a chain is walked from its top.',
  },
  {
    id: 'ipvs',
    title: 'IPVS and its schedulers',
    story:
      'IPVS is a load balancer in the kernel: a table of virtual servers with the pods behind each, and a scheduler that chooses. kube-proxy fills the table.',
    needs: [],
    tasks: (modes) => [
      {
        words: 'Show the rules as ipvs mode would make them.',
        isDone: (facts) => facts.rulesMode === 'ipvs',
      },
      {
        words: 'Choose the scheduler sh and find it at the virtual server of the Service.',
        isDone: check.schedulerIs('sh'),
      },
      ...(modes.includes('ipvs')
        ? [
            {
              words: 'Switch to ipvs mode and send 6 requests: by source, one pod gets them all.',
              isDone: check.onePodOnly(6),
            },
          ]
        : []),
    ],
    moral:
      'One lookup in a hash table however many Services there are, and a choice of schedulers.',
  },
  {
    id: 'nftables',
    title: 'nftables and its maps',
    story:
      'nftables has maps: one rule looks up address, protocol and port, and finds where to go on, be there ten Services or ten thousand.',
    needs: [['nftables']],
    tasks: () => [
      { words: 'Switch to nftables mode.', isDone: check.runsIn('nftables') },
      {
        words:
          'Scale to 5 pods and wait until all are ready: no rule more, the map of endpoints is larger.',
        isDone: check.endpointsInRules(5),
      },
      { words: 'Send 100: all five answer.', isDone: check.everybodyAnswered },
    ],
    moral: 'The work for a packet no longer grows with the number of Services.',
  },
  {
    id: 'outside',
    title: 'NodePort, LoadBalancer and source addresses',
    story:
      'The outside has no way to a ClusterIP. A node port opens every node; a load balancer points at the nodes. The price may be the source address: an answer has to go back the way it came.',
    needs: [['iptables', 'nftables'], ['outside']],
    tasks: () => [
      {
        words:
          'In iptables or nftables mode, as NodePort with external policy Cluster: send from outside to the NodePort. The pod saw the node.',
        isDone: check.outsideSource(false),
      },
      {
        words: 'Set the external policy to Local and send again: the pod saw who asked.',
        isDone: check.outsideSource(true),
      },
      {
        words:
          'Make it a LoadBalancer that only 10.0.0.0/8 may use. Send from outside to it: silence.',
        isDone: check.keptOut,
      },
      {
        words: 'Allow 192.168.50.0/24 instead, and send from outside: answered.',
        isDone: check.letIn,
      },
    ],
    moral: 'Local keeps the source and saves a hop, but only nodes that have a pod answer.',
  },
  {
    id: 'trouble',
    title: 'What goes wrong',
    story:
      'Three classics: nobody is behind the Service; a pod calls its own Service and meets itself; a UDP client keeps its socket while the pod behind it goes away.',
    needs: [],
    tasks: () => [
      {
        words:
          'Scale to 0, wait until the pods are gone, and send from a pod: refused at once, no time-out.',
        isDone: check.refused,
      },
      {
        words: 'Scale to 1 and let that pod call its own Service: it answers itself.',
        isDone: check.hairpin,
      },
      {
        words:
          'Select Service default/echo (UDP), scale to 2 and send one. Terminate the pod that answered and send again: another one answers, as kube-proxy forgot the stale flow.',
        isDone: check.flowMoved,
      },
    ],
    moral: 'Each was once a bug that took weeks. Now you know what to look for.',
  },
]
