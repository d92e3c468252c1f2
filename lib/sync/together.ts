/** Runs all until the signal or until one fails; then all are stopped, and the failure is thrown. */
export async function together(
  signal: AbortSignal,
  parts: readonly ((signal: AbortSignal) => Promise<void>)[],
): Promise<void> {
  const failure = new AbortController()
  const either = AbortSignal.any([signal, failure.signal])
  const results = await Promise.allSettled(
    parts.map(async (part) => {
      try {
        await part(either)
      } catch (error) {
        failure.abort()
        throw error
      }
    }),
  )
  for (const result of results) if (result.status === 'rejected') throw result.reason
}
