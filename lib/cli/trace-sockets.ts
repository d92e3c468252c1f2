import { pause } from '../async.js'
import { ConfigError } from '../errors.js'
import { socketStories, type TracedService } from '../inspect/trace/socket-stories.js'
import type { TraceStory } from '../inspect/trace/story.js'
import { get } from './seen-node.js'

const lookEveryMs = 250

export interface SocketWatch {
  /** The metrics of the proxy at the start; empty where no socket is translated. */
  readonly page: string
  readonly daemon: string
  readonly found: (story: TraceStory) => void
  readonly stop: AbortSignal
}

/** Reports connections that socket programs have translated, until the signal. */
export async function followSockets(
  asked: TracedService,
  { page, daemon, found, stop }: SocketWatch,
): Promise<void> {
  let before = page
  while (before !== '' && !stop.aborted) {
    await pause(lookEveryMs, stop)
    const after = await get(daemon, '/metrics').catch((error: unknown) => {
      // The proxy may be restarting; its numbers go on where they were.
      if (error instanceof ConfigError) return before
      throw error
    })
    for (const story of socketStories(before, after, asked)) found(story)
    before = after
  }
}
