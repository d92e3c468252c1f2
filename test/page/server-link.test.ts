import t from 'tap'
import type { PageLink } from '../../lib/page/browser/link.js'
import type { ObjectLine } from '../../lib/page/view.js'

// The pages of a browser are compiled on their own, so their types end here.
const path = '../../lib/page/browser/server-link.js'
const { serverLink } = (await import(path)) as { serverLink: PageLink }
const line: ObjectLine = { apiVersion: 'v1', kind: 'Pod', namespace: 'default', name: 'web-1' }

function answering(t: { teardown(act: () => void): unknown }, answer: () => Promise<Response>) {
  const { fetch } = globalThis
  globalThis.fetch = answer
  t.teardown(() => (globalThis.fetch = fetch))
}

t.test('the YAML of an object that is gone is none', async (t) => {
  answering(t, () => Promise.resolve(new Response('there is no Pod web-1', { status: 404 })))
  t.equal(await serverLink.yaml(line), undefined)
  t.equal(
    await serverLink.perform({ do: 'clear' }),
    'there is no Pod web-1',
    'but a refusal is told',
  )
})

t.test('the YAML of an object is what the server says', async (t) => {
  answering(t, () => Promise.resolve(new Response('kind: Pod')))
  t.equal(await serverLink.yaml(line), 'kind: Pod')
})

t.test('without a server the page says so, in words for playgrounds and nodes', async (t) => {
  answering(t, () => Promise.reject(new TypeError('fetch failed')))
  t.equal(await serverLink.yaml(line), undefined)
  const unanswered = 'the server of this page did not answer; try it again'
  t.equal(await serverLink.perform({ do: 'clear' }), unanswered, 'it may be followed all the while')
  let sources: EventTarget[] = []
  class Source extends EventTarget {
    static readonly CLOSED = 2
    readyState = 0
    constructor() {
      super()
      sources = [...sources, this]
    }
  }
  const browser = { EventSource: Source, document: new EventTarget() }
  Object.assign(globalThis, browser)
  t.teardown(() => Object.keys(browser).map((name) => Reflect.deleteProperty(globalThis, name)))
  const told: string[] = []
  serverLink.follow(
    () => undefined,
    (words) => told.push(words),
  )
  sources[0]?.dispatchEvent(new Event('error'))
  t.same(told, ['the server of this page has ended or does not answer; waiting for it …'])
})
