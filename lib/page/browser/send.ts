import { byId } from './element.js'
import type { PageCommand } from '../view.js'

/** Sends a command to the playground; what it refuses is shown at the top of the page. */
export async function send(command: PageCommand): Promise<boolean> {
  const error = byId('error')
  const response = await fetch('/command', {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(command),
  }).catch(() => undefined)
  const isFine = response?.ok === true
  error.textContent = response ? await response.text() : 'The playground has ended.'
  error.hidden = isFine
  return isFine
}
