/** Finds an element of index.html by its id. */
export function byId(id: string): HTMLElement {
  const found = document.getElementById(id)
  if (!found) throw new Error(`find #${id}: the page lacks it`)
  return found
}

/** An element with text; names of objects become text nodes, never markup. */
export function element(tag: string, className = '', ...content: (string | Node)[]): HTMLElement {
  const made = document.createElement(tag)
  if (className !== '') made.className = className
  made.append(...content)
  return made
}

export function button(words: string, act: () => void, label = words): HTMLButtonElement {
  const made = document.createElement('button')
  made.type = 'button'
  made.textContent = words
  if (label !== words) made.setAttribute('aria-label', label)
  made.addEventListener('click', act)
  return made
}

export function drawn(
  tag: string,
  attributes: Readonly<Record<string, string | number>>,
  text = '',
): SVGElement {
  const made = document.createElementNS('http://www.w3.org/2000/svg', tag)
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value))
  if (text !== '') made.textContent = text
  return made
}

/** Parts are drawn again only when what they show has changed. */
const shown = new Map<string, string>()

export function redraw(part: string, value: unknown, draw: () => void): void {
  const key = JSON.stringify(value)
  if (shown.get(part) === key) return
  shown.set(part, key)
  draw()
}

/**
 * Replaces a list and keeps the focus in the item with the same `data-key`. Otherwise a keyboard
 * user goes back to the top of the page whenever a pod changes.
 */
export function replaceKept(list: HTMLElement, ...content: Node[]): void {
  const focused = document.activeElement
  const key = focused instanceof HTMLElement && list.contains(focused) ? keyOf(focused) : undefined
  list.replaceChildren(...content)
  if (key === undefined) return
  const again = [...list.querySelectorAll<HTMLElement>('[data-key]')]
  again.find((each) => keyOf(each) === key)?.focus()
}

function keyOf(of: HTMLElement): string | undefined {
  return of.dataset['key']
}

/** The name of a pod without the hash that all pods of a Deployment share. */
export function shortName(name: string): string {
  return name.replace(/^(.+)-[0-9a-f]{6,10}-([a-z0-9]{5})$/, '$1-$2')
}

export function percent(probability: number): string {
  const value = Math.round(probability * 1000) / 10
  return `${Number.isInteger(value) ? value : value.toFixed(1)} %`
}
