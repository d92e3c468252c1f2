/** Finds what index.html promises. */
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
