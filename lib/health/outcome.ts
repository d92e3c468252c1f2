import type { Socket } from 'node:net'

/** What one check found. `unknown`: this node could not check, which says nothing of the endpoint. */
export type Outcome =
  { readonly kind: 'good' } | { readonly kind: 'bad' | 'unknown'; readonly reason: string }

export const good: Outcome = { kind: 'good' }

/** Talks to a connected endpoint until it knows. What it tells after the first time is not heard. */
export type Conversation = (socket: Socket, told: (outcome: Outcome) => void) => void
