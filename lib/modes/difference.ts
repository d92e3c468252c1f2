/** One thing of the kernel that is not as it should be, in the words of the kernel's own tools. */
export interface Difference {
  /** Chain, set, virtual server or device: `nat KUBE-SVC-…`, `map service-ips`. */
  readonly where: string
  /** What should stand there; undefined for what should not be there at all. */
  readonly expected: string | undefined
  /** What stands there; undefined for what is missing. */
  readonly found: string | undefined
  /** The service port it belongs to; empty for the node's own, or where nobody can tell. */
  readonly owner: string
}

/** Expected at a place of which nothing is there. */
export const wholeChain = 'the chain'
export const wholeAddress = 'the address'

/** `default/web:http` of `default/web:http/TCP`, as operators know it; empty for any other key. */
export function ownerText(key: string): string {
  return /^(.*)\/(?:TCP|UDP|SCTP)$/.exec(key)?.[1] ?? ''
}
