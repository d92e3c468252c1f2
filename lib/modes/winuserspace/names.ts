/** The interface that kube-proxy 1.25 put the addresses of Services on (WU08). */
export const hnsInterface = 'vEthernet (HNS Internal NIC)'

/** Below %ProgramData%: the list of the addresses that this mode has added. */
export const journalName = ['kube-proxy-ts', 'addresses.json'] as const
