import type { Cidr } from './ip.js'

/** How a packet is known to come from a pod of this node (R07); `none`: it is not known (R08). */
export type LocalTraffic =
  | { readonly by: 'none' }
  | { readonly by: 'cidrs'; readonly cidrs: readonly Cidr[] }
  | { readonly by: 'interface'; readonly name: string }
  | { readonly by: 'interface-prefix'; readonly prefix: string }
