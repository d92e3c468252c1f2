/**
 * Aborted by SIGTERM or SIGINT, so that everything drains. Whoever insists (a second signal) is
 * obeyed at once.
 */
export function stopSignal(): AbortSignal {
  const controller = new AbortController()
  const stop = () => {
    if (controller.signal.aborted) process.exit(1)
    controller.abort()
  }
  process.on('SIGTERM', stop)
  process.on('SIGINT', stop)
  return controller.signal
}
