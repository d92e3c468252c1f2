/** When to give up, and how long to wait before the next attempt. */
export type ListWatchTiming = Readonly<typeof defaultTiming>

export const defaultTiming = {
  /** Small, because parsing a page blocks the connections of clients (userspace mode). */
  pageSize: 250,
  headTimeoutMs: 30_000,
  /**
   * After this silence the server is asked for a sign of life, as kube-proxy's client does. It has
   * half of this time to answer, 15 s at most.
   */
  askAfterMs: 30_000,
  /**
   * After this silence the watch is resumed, even when the server answers other requests: there may
   * be several servers behind one address, and one of them, or a device on the way, may hang.
   * kube-proxy's client, which asks on the connection itself, gives up after 45 s. Servers send
   * bookmarks only about once a minute. But where many nodes watch, Services and endpoints are
   * never quiet for so long.
   */
  idleTimeoutMs: 40_000,
  /**
   * The same for objects that are quiet in every cluster and never urgent. It is longer than the
   * time between two bookmarks.
   */
  quietIdleTimeoutMs: 75_000,
  /** A page that takes longer counts as failed. */
  pageTimeoutMs: 120_000,
  firstRetryMs: 200,
  /** The longest wait while nothing listens at the address: attempts cost the server nothing. */
  longestConnectRetryMs: 5_000,
  /** The longest wait while the server answers with errors: attempts add to its load. */
  longestErrorRetryMs: 30_000,
  /** Time between two attempts to list an optional kind that is absent. */
  absentRetryMs: 300_000,
  /** When watches went on for this time, the waits before lists that a watch asked for are short. */
  soundWatchMs: 60_000,
}
