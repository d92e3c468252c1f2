/** A question before a task. A learner who has guessed looks at the result more closely. */
interface Prediction {
  readonly question: string
  readonly choices: readonly string[]
  /** The index of the choice that comes true. */
  readonly right: number
}

/** By lesson and the index of the task that answers it. Data, as in lessons.ts. */
export const predictions: Readonly<Record<string, Prediction>> = {
  'cluster-ip/1': {
    question: 'A pod is gone, and another one comes. What does the client have to change?',
    choices: ['the address', 'the port', 'nothing'],
    right: 2,
  },
  'userspace/2': {
    question: 'Whom does the pod see as the sender?',
    choices: ['the client pod', 'the node', 'nobody'],
    right: 1,
  },
  'iptables/2': {
    question: 'kube-proxy is not in the way any more. Whom does the pod see as the sender?',
    choices: ['the client pod', 'the node'],
    right: 0,
  },
  'statistics/1': {
    question: 'With two pods, what does the first rule take?',
    choices: ['1/3 of the connections', '1/2 of them', 'all of them'],
    right: 1,
  },
  'ipvs/1': {
    question: 'Another scheduler: what changes in what kube-proxy writes?',
    choices: ['a rule for each pod', 'one word of the virtual server', 'nothing'],
    right: 1,
  },
  'ipvs/2': {
    question: 'The scheduler sh looks at the source. How many pods answer one client?',
    choices: ['all three', 'two', 'one'],
    right: 2,
  },
  'nftables/1': {
    question: 'Two more pods: what grows?',
    choices: ['the number of rules', 'a map', 'nothing'],
    right: 1,
  },
  'ebpf/2': {
    question: 'How many rules does a packet of a pod meet on its way to the pod that it is for?',
    choices: ['five', 'one', 'none'],
    right: 2,
  },
  'outside/1': {
    question: 'With policy Local, may a pod of the other node answer?',
    choices: ['yes', 'no'],
    right: 1,
  },
  'outside/2': {
    question:
      'The sender has an address of 192.168.50.0/24, and 10.0.0.0/8 is let in. What does it get?',
    choices: ['an answer', 'a refusal', 'no answer at all'],
    right: 2,
  },
  'trouble/0': {
    question: 'A Service without any pod: how long does the client wait?',
    choices: ['it is refused at once', 'until it gives up'],
    right: 0,
  },
  'dark/1': {
    question: 'One pod is silent. How many of 20 requests does userspace mode lose?',
    choices: ['a third', 'one', 'none'],
    right: 2,
  },
}
