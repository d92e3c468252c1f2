import type { Cidr } from './ip.js'

/** How packets from pods of this node are recognized (R07); `none`: they are not (R08). */
export type LocalTraffic =
  | { readonly by: 'none' }
  | { readonly by: 'cidrs'; readonly cidrs: readonly Cidr[] }
  | { readonly by: 'interface'; readonly name: string }
  | { readonly by: 'interface-prefix'; readonly prefix: string }
