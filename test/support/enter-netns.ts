import { insideNamespace } from '../../lib/kernel/network-namespaces.js'

/**
 * Does something while this thread is inside the namespace. A socket that is opened meanwhile stays
 * in the namespace, and a program that is started meanwhile runs there.
 */
export const inside = <T>(netns: { readonly name: string }, work: () => T): T =>
  insideNamespace(netns.name, work)
