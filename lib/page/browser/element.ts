/** Finds an element of index.html by its id. */
export function byId(id: string): HTMLElement {
  const found = document.getElementById(id)
  if (!found) throw new Error(`find #${id}: the page lacks it`)
  return found
}

/** Sets another text only: what is set again is read out again by a screen reader. */
export function setText(id: string, text: string): void {
  const place = byId(id)
  if (place.textContent !== text) place.textContent = text
}

/** An element with text; names of objects become text nodes, never markup. */
export function element(tag: string, className = '', ...content: (string | Node)[]): HTMLElement {
  const made = document.createElement(tag)
  if (className !== '') made.className = className
  made.append(...content)
  return made
}

/** Marks an element as the same one as before, so that it is changed and not replaced. */
export function keyed(key: string, part: HTMLElement): HTMLElement {
  part.dataset['key'] = key
  return part
}

/** What each button does. A button that stays while its surroundings change gets the new action. */
const acts = new WeakMap<Element, () => void>()

export function button(words: string, act: () => void, label = words): HTMLButtonElement {
  const made = document.createElement('button')
  made.type = 'button'
  made.textContent = words
  if (label !== words) made.setAttribute('aria-label', label)
  acts.set(made, act)
  made.addEventListener('click', () => acts.get(made)?.())
  return made
}

/** A button that keeps its focus while its surroundings change. */
export function keptButton(
  key: string,
  words: string,
  act: () => void,
  look = '',
): HTMLButtonElement {
  const made = button(words, act)
  made.dataset['key'] = key
  made.className = look
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

/** The value that each part shows. A part is drawn again only when its value changes. */
const shown = new Map<string, string>()

export function drawIfChanged(part: string, value: unknown, draw: () => void): void {
  const key = JSON.stringify(value)
  if (shown.get(part) === key) return
  shown.set(part, key)
  draw()
}

/**
 * Makes a place show this content. An element that is there already, by its `data-key`, is changed
 * and not replaced, because a replaced element loses the focus and a click that is under way.
 */
export function updateChildren(place: Element, ...content: Node[]): void {
  const focused = document.activeElement
  const index = [...place.children].findIndex((child) => child.contains(focused))
  arrange(place, content)
  if (index !== -1 && document.activeElement !== focused) focusInstead(place, index)
}

/** What had the focus is gone: its heading has it now, or what took its place. */
function focusInstead(place: Element, index: number): void {
  const heir = place.querySelector('h3') ?? place.children[index] ?? place.lastElementChild
  if (heir instanceof HTMLElement) heir.focus({ preventScroll: true })
}

function arrange(place: Element, content: readonly Node[]): void {
  const there = new Map([...place.children].map((child) => [keyOf(child), child]))
  const kept = content.map((fresh) => {
    const old = fresh instanceof Element && there.get(keyOf(fresh) ?? '')
    return old && old.tagName === fresh.tagName ? adapted(old, fresh) : fresh
  })
  for (const child of [...place.childNodes]) if (!kept.includes(child)) child.remove()
  kept.forEach((child, index) => {
    const before = place.childNodes[index] ?? null
    if (child !== before) place.insertBefore(child, before)
  })
}

function adapted(old: Element, fresh: Element): Element {
  if (old === fresh) return old
  if (old.isEqualNode(fresh)) {
    takeActs(old, fresh)
    return old
  }
  takeAct(old, fresh)
  for (const { name } of [...old.attributes])
    if (!fresh.hasAttribute(name)) old.removeAttribute(name)
  for (const { name, value } of fresh.attributes) old.setAttribute(name, value)
  arrange(old, [...fresh.childNodes])
  return old
}

/** The actions of an element that looks the same, and of all in it. */
function takeActs(old: Element, fresh: Element): void {
  takeAct(old, fresh)
  const buttons = fresh.querySelectorAll('button')
  for (const [index, one] of old.querySelectorAll('button').entries()) takeAct(one, buttons[index])
}

function takeAct(old: Element, fresh: Element | undefined): void {
  const act = fresh && acts.get(fresh)
  if (act) acts.set(old, act)
}

function keyOf(of: Element): string | undefined {
  return of instanceof HTMLElement ? of.dataset['key'] : undefined
}

/** The name of a pod without the hash that all pods of a Deployment share. */
export function shortName(name: string): string {
  return name.replace(/^(.+)-[0-9a-f]{6,10}-([a-z0-9]{5})$/, '$1-$2')
}

export function percent(probability: number): string {
  const value = Math.round(probability * 1000) / 10
  return `${Number.isInteger(value) ? value : value.toFixed(1)} %`
}
