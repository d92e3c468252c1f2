import { readFileSync, readdirSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { annotationNames } from '../../lib/state/known-annotations.js'
import { annotationWarnings } from '../../lib/state/annotation-warnings.js'

const prefix = 'annotation "kube-proxy-ts/'

t.test('a misspelled name is told, with the name that was meant', async (t) => {
  for (const [wrong, right] of [
    ['helth-check', 'health-check'],
    ['Balance', 'balance'],
    ['health-check-intervall', 'health-check-interval'],
    ['source-adress', 'source-address'],
    ['proxyprotocol', 'proxy-protocol'],
  ]) {
    const told = annotationWarnings({ [`${wrong}`]: 'tcp' })
    t.same(told, [
      `${prefix}${wrong}" has no effect, because nothing has this name; did you mean kube-proxy-ts/${right}?`,
    ])
  }
  t.same(annotationWarnings({ 'timeout-of-the-proxy': '1s' }), [
    `${prefix}timeout-of-the-proxy" has no effect, because nothing has this name; the names are ${annotationNames.join(', ')}`,
  ])
})

t.test('hostile names are escaped and cut, and many are told in a few texts', async (t) => {
  const names = ['a\u202e\n', '', 'x'.repeat(100_000), 'toString', '<b>', 'y1', 'y2', 'y3']
  const told = annotationWarnings(Object.fromEntries(names.map((name) => [name, 'z'])))
  t.equal(told.length, 6)
  t.ok(told[0]?.startsWith(`${prefix}a\\u202e\\n" has no effect`), told[0] ?? '')
  t.equal(
    told.at(-1),
    '3 more annotations kube-proxy-ts/… have no effect, because nothing has their names',
  )
  t.ok(told.every((text) => text.length < 500 && !/[\n\u202e]/.test(text)))
})

t.test(
  'an annotation that only says how another one works is told where it is alone',
  async (t) => {
    const alone = ['interval', 'timeout', 'fall', 'rise', 'last'].map(
      (each) => `health-check-${each}`,
    )
    const values = ['5s', '1s', '2', '2', 'keep']
    const options = Object.fromEntries(alone.map((name, index) => [name, values[index] ?? '']))
    t.same(
      new Set(annotationWarnings(options)),
      new Set(
        alone.map(
          (name) =>
            `annotation kube-proxy-ts/${name} has no effect without kube-proxy-ts/health-check, which asks for the checks`,
        ),
      ),
    )
    t.same(annotationWarnings({ ...options, 'health-check': 'tcp' }), [])
    t.match(
      annotationWarnings({ ...options, 'health-check': 'tpc' }),
      [/health-check: "tpc" has no effect; valid:/],
      'one warning for one mistake',
    )
    const noBalance = [
      /^annotation kube-proxy-ts\/weight has no effect without .*balance: weighted/,
    ]
    t.match(annotationWarnings({ weight: 'a=1' }), noBalance)
    t.match(annotationWarnings({ weight: 'a=1', balance: 'random' }), noBalance)
    t.same(annotationWarnings({ weight: 'a=1', balance: 'first' }), [])
    t.same(annotationWarnings({ weight: 'a=1', balance: 'weighted' }), [])
    t.equal(annotationWarnings({ weight: 'a=1', balance: 'weigthed' }).length, 1)
    t.same(annotationWarnings({ weight: 'a=1', 'ipvs-scheduler': 'wrr' }), [])
  },
)

t.test('a wrong value of an annotation that one mode reads is told in every mode', async (t) => {
  t.match(annotationWarnings({ 'ipvs-scheduler': 'least', sockets: 'no' }), [
    /^annotation kube-proxy-ts\/ipvs-scheduler: "least" has no effect; valid: rr, wrr, lc, /,
    /^annotation kube-proxy-ts\/sockets: "no" has no effect; valid: off$/,
  ])
  t.same(annotationWarnings({ 'ipvs-scheduler': 'twos', sockets: 'off' }), [])
})

t.test('the documents describe all annotations, and no others', async (t) => {
  const docs = fileURLToPath(new URL('../../../docs/', import.meta.url))
  const pages = readdirSync(docs).filter((file) => file.endsWith('.md'))
  const text = pages.map((file) => readFileSync(`${docs}${file}`, 'utf8')).join('\n')
  const rows = [...text.matchAll(/^\| `kube-proxy-ts\/([a-z-]+)/gm)].map(([, name = '']) => name)
  t.ok(rows.length >= 6)
  for (const name of rows) t.ok(annotationNames.includes(name), `${name} is in a table`)
  for (const name of annotationNames) t.match(text, `kube-proxy-ts/${name}`)
})
