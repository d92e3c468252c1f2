import * as check from './lesson-checks.js'

/** Data, as in lessons.ts. */
export const ebpfLesson = {
  id: 'ebpf',
  title: 'What a packet does not have to do',
  story:
    'In all other modes a packet starts for the address of the Service, and something on its way rewrites it and remembers that for every packet that follows. eBPF mode asks earlier: a program at connect() replaces the address before there is a packet.',
  needs: [],
  tasks: (modes: readonly string[]) => [
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
    ...(modes.includes('ebpf')
      ? [
          {
            words: 'Switch to ebpf mode and send one from a pod: the pod saw the real sender.',
            isDone: check.sourceKept('client-pod'),
          },
        ]
      : []),
  ],
  moral:
    'No rule, no rewriting and no tracking for each packet: it is addressed to the pod from the beginning. Packets from other machines have no connect() here, so the rules of nftables stay for them.',
}
