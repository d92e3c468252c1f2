export interface NewsOptions {
  /** The same text is news again after this long. */
  readonly forMs: number
  readonly now: () => number
}

/** Tells whether a text was not said lately: what fails every second is told every half minute. */
export function newsOnly({ forMs, now }: NewsOptions): (text: string) => boolean {
  const saidAt = new Map<string, number>()
  return (text) => {
    const time = now()
    for (const [said, at] of saidAt) if (time - at >= forMs) saidAt.delete(said)
    if (saidAt.has(text)) return false
    saidAt.set(text, time)
    return true
  }
}
