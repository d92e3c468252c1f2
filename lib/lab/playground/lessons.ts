import * as check from './lesson-checks.js'
import type { LessonFacts } from './lesson-checks.js'
import type { ModeName } from '../../config/config.js'
import type { PageCommand } from '../../page/page-command.js'

/** One thing to do, and how the playground sees that it was done. */
export interface Task {
  /** The task is left out where this mode cannot run. */
  readonly mode?: ModeName
  readonly words: string
  readonly isDone: (facts: LessonFacts) => boolean
}

export interface Lesson {
  readonly id: string
  readonly title: string
  readonly story: string
  /** The commands that it begins with. The Service and three pods are new then. */
  readonly scene?: readonly PageCommand[]
  /** Of each group at least one must be available here; nothing is needed if absent. */
  readonly needs?: readonly (readonly (ModeName | 'outside')[])[]
  readonly tasks: readonly Task[]
  readonly moral: string
}

/** With one of three pods dark, so many answers in a row come by chance once in 3,000 times. */
const inARow = 20

/** The lessons, in the order of history. Data: what they check is in lesson-checks.ts. */
export const lessons: readonly Lesson[] = [
  {
    id: 'cluster-ip',
    title: 'What a ClusterIP is',
    story:
      'Pods come and go, and their addresses change. A Service has one address that stays. No network interface has it: the node of the client rewrites it to the address of a pod.',
    tasks: [
      {
        words: 'Send from a pod to the ClusterIP until every ready pod has answered.',
        isDone: check.everybodyAnswered,
      },
      {
        words: 'Terminate a pod. Send until its successor answers: the ClusterIP is the same.',
        isDone: check.successorAnswered,
      },
    ],
    moral: 'One address for all pods of a Service. kube-proxy keeps the translation up to date.',
  },
  {
    id: 'userspace',
    title: 'Userspace, the original',
    story:
      'The first kube-proxy was a real proxy: rules send every connection to a port of kube-proxy, which makes a second connection to a pod.',
    needs: [['userspace']],
    tasks: [
      { words: 'Switch to userspace mode.', isDone: check.runsIn('userspace') },
      {
        words: 'Send single requests, two rounds of them. The pods answer strictly in turn.',
        isDone: check.strictTurns,
      },
      {
        words: 'Send one more from a pod, and look in the log: the pod saw the node as sender.',
        isDone: check.sourceSeen(false),
      },
    ],
    moral:
      'Pods take exact turns, and the numbers are exact. But all data goes through a process, and the pod does not see the address of the client. Today the proxy could keep that address; here it does as the original did.',
  },
  {
    id: 'iptables',
    title: 'Why iptables replaced it',
    story:
      'iptables can do the translation inside the kernel. kube-proxy then only writes rules, and no packet ever passes through it.',
    scene: [{ do: 'mode', mode: 'userspace' }],
    needs: [['userspace'], ['iptables']],
    tasks: [
      {
        words:
          'In userspace mode send 100 requests, and look in the log how long each took (a simulation shows –).',
        isDone: check.hundredIn('userspace'),
      },
      {
        words: 'Switch to iptables mode and send 100 again.',
        isDone: check.hundredIn('iptables'),
      },
      {
        words: 'Send one from a pod: this time the pod saw the real sender.',
        isDone: check.sourceSeen(true),
      },
    ],
    moral:
      'Faster, and the pod sees the real sender. But pods are now chosen by chance, not in turn.',
  },
  {
    id: 'statistics',
    title: '1/3, 1/2, 1',
    story:
      'iptables has no list to choose from, only rules one after the other. With three pods the first rule takes 1/3 of the connections, the second 1/2 of the rest, the last one all others: a third each.',
    scene: [{ do: 'mode', mode: 'iptables' }],
    needs: [['iptables']],
    tasks: [
      {
        words: 'In iptables mode, with 3 pods ready, send 100: each gets about a third.',
        isDone: check.evenShares(3),
      },
      {
        words: 'Scale to 2. Read in the rules how 1/3 and 1/2 have changed, then send 100.',
        isDone: check.evenShares(2),
      },
    ],
    moral:
      'Fair on average, but with one more rule for every pod. The kernel reads a chain from its first rule.',
  },
  {
    id: 'ipvs',
    title: 'IPVS and its schedulers',
    story:
      'IPVS is a load balancer in the kernel: a table of virtual servers with the pods behind each, and a scheduler that chooses. kube-proxy fills the table.',
    tasks: [
      {
        words: 'Show the rules as ipvs mode would make them.',
        isDone: (facts) => facts.rulesMode === 'ipvs',
      },
      {
        words: 'Choose the scheduler sh and find it at the virtual server of the Service.',
        isDone: check.schedulerIs('sh'),
      },
      {
        mode: 'ipvs',
        words:
          'Switch to ipvs mode and send 6 requests: the source decides, so one pod gets them all.',
        isDone: check.onePodOnly(6),
      },
    ],
    moral: 'One lookup in a hash table for any number of Services, and a choice of schedulers.',
  },
  {
    id: 'nftables',
    title: 'nftables and its maps',
    story:
      'nftables has maps: one rule looks up address, protocol and port, and finds the next chain, with ten Services as with ten thousand.',
    needs: [['nftables']],
    tasks: [
      { words: 'Switch to nftables mode.', isDone: check.runsIn('nftables') },
      {
        words:
          'Scale to 5 pods and wait until all are ready: there is no new rule, but the map of endpoints is larger.',
        isDone: check.endpointsInRules(5),
      },
      { words: 'Send 100: all five answer.', isDone: check.everybodyAnswered },
    ],
    moral: 'The work for a packet no longer grows with the number of Services.',
  },
  {
    id: 'ebpf',
    title: 'What a packet does not have to do',
    story:
      'In all other modes a packet starts for the address of the Service, and something on its way rewrites it and remembers that for every packet that follows. eBPF mode asks earlier: a program at connect() replaces the address before there is a packet.',
    tasks: [
      {
        words:
          'Show the rules as nftables mode would make them, and find the rule that rewrites the address (dnat).',
        isDone: check.showsRules('nftables', 'dnat'),
      },
      {
        words:
          'Show the rules as ebpf mode would make them: above all rules is the frontend that connect() looks up.',
        isDone: check.showsRules('ebpf', ': frontend '),
      },
      {
        words:
          'Scale to 5 and wait until all are ready: one line names them, and a program reads one entry of it.',
        isDone: check.endpointsAtSockets(5),
      },
      {
        mode: 'ebpf',
        words: 'Switch to ebpf mode and send one from a pod: the pod saw the real sender.',
        isDone: check.sourceSeen(true),
      },
    ],
    moral:
      'No rule, no rewriting and no tracking for each packet: it is addressed to the pod from the beginning. Packets from other machines have no connect() here, so the rules of nftables stay for them.',
  },
  {
    id: 'outside',
    title: 'NodePort, LoadBalancer and source addresses',
    story:
      'Clients outside of the cluster cannot reach a ClusterIP. A node port is open on every node, and a load balancer sends to the nodes. The pod may not see the real sender then, because its answer has to go back through the same node.',
    scene: [{ do: 'mode', mode: 'iptables' }],
    needs: [['iptables', 'nftables'], ['outside']],
    tasks: [
      {
        words:
          'In iptables or nftables mode, as NodePort with external policy Cluster: send from outside to the NodePort. The pod saw the node.',
        isDone: check.outsideSource(false),
      },
      {
        words: 'Set the external policy to Local and send again: the pod saw the real sender.',
        isDone: check.outsideSource(true),
      },
      {
        words:
          'Make it a LoadBalancer that only 10.0.0.0/8 may use. Send from outside to it: no answer.',
        isDone: check.byRanges(false),
      },
      {
        words: 'Allow 192.168.50.0/24 instead, and send from outside: answered.',
        isDone: check.byRanges(true),
      },
    ],
    moral: 'Local keeps the source and saves a hop, but only nodes that have a pod answer.',
  },
  {
    id: 'trouble',
    title: 'What goes wrong',
    story:
      'Three common cases: a Service has no endpoint; a pod calls its own Service and reaches itself; a UDP client keeps its socket while its pod goes away.',
    tasks: [
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
          'Select Service default/echo (UDP), scale to 2 and send one. Terminate the pod that answered and send again: another one answers, because kube-proxy deleted the stale flow.',
        isDone: check.flowMoved,
      },
    ],
    moral: 'Each of these was once a bug that took weeks to find. Now you know what to look for.',
  },
  // A machine loses its power. Who notices, and when?
  {
    id: 'dark',
    title: 'A pod goes dark',
    story:
      'A machine that loses its power says no goodbye. Kubernetes takes 40 seconds and more to notice that its pods are gone. Until then they count as ready, and every mode sends connections to them.',
    needs: [['userspace'], ['iptables', 'nftables']],
    tasks: [
      {
        words:
          'Let a pod go dark: kubectl annotate pod NAME playground/process=dark, or add that annotation to the YAML of a pod. It still counts as ready. In iptables or nftables mode send until a request gets no answer.',
        isDone: check.someGetNoAnswer,
      },
      {
        words: `Switch to userspace mode and send ${inARow} requests: all are answered. The first wait for a moment, because the proxy tries the next pod when one does not answer.`,
        isDone: check.allAnswered(inARow, ['userspace']),
      },
      {
        words: `Back in iptables or nftables mode, let this node check: kubectl annotate service web kube-proxy-ts/health-check=tcp kube-proxy-ts/health-check-interval=1s. After three failures the pod is failing, and nobody is sent there: send until ${inARow} in a row are answered.`,
        isDone: check.allAnswered(inARow, ['iptables', 'nftables']),
      },
    ],
    moral:
      'Rules in the kernel send packets and never learn what became of them. A proxy sees that a pod does not answer; rules need somebody who checks.',
  },
]
