/** The counts of `npm test`. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'

interface TapReader {
  readonly passed: number
  readonly failed: number
  readonly skipped: number
  readonly tests: readonly { readonly name: string; readonly ms: number }[]
  readonly notes: readonly string[]
  read(line: string): void
  end(code: number, ms: number): void
}

const scripts = join(fileURLToPath(new URL('../../..', import.meta.url)), 'scripts')
const { withSourcePlaces } = (await import(join(scripts, 'source-places.mjs'))) as {
  withSourcePlaces: (text: string) => string
}
const { TapReader } = (await import(join(scripts, 'tap-reader.mjs'))) as {
  TapReader: new (name: string, options?: { isFlat?: boolean }) => TapReader
}

function read(text: string, { code = 0, isFlat = false } = {}): TapReader {
  const reader = new TapReader('file', { isFlat })
  for (const line of text.split('\n')) reader.read(line)
  reader.end(code, 70)
  return reader
}

const nested = `TAP version 14
# Subtest: outer
    ok 1 - an assertion
    # Subtest: first
        ok 1 - x
        ok 2 - y
        1..2
    ok 2 - first # time=12.5ms
    # Subtest: second
        not ok 1 - z
          ---
          diff: why
          ...
        1..1
    not ok 3 - second # time=3ms
      ---
      at: here
      ...
    1..3
not ok 1 - outer # time=20ms
ok 2 - left out # SKIP no root
# Subtest: alone
    ok 1 - x
    1..1
ok 3 - alone # time=1ms
1..3`

t.test('tests are counted, not assertions', (t) => {
  const { passed, failed, skipped, tests } = read(nested, { code: 1 })
  t.same({ passed, failed, skipped }, { passed: 2, failed: 1, skipped: 1 })
  t.same(tests, [
    { name: 'file: first', ms: 12.5 },
    { name: 'file: second', ms: 3 },
    { name: 'file: alone', ms: 1 },
  ])
  t.end()
})

t.test('a failure keeps its details, and a skip its reason', (t) => {
  const { notes } = read(nested, { code: 1 })
  t.match(notes.join('\n'), /not ok 1 - z\n +---\n +diff: why\n/)
  t.match(notes.join('\n'), /# SKIP no root/)
  t.notMatch(notes.join('\n'), /an assertion|alone/)
  const told = '# node-1 leaves out flows: why'
  t.same(read(`# Subtest: what it leaves out here\n    1..0\n${told}\nok 1 - x\n1..1`).notes, [
    told,
  ])
  t.end()
})

t.test('an assertion that fails outside of every subtest is a failure', (t) => {
  const own = nested
    .replace('    not ok 3 - second', '    ok 3 - second')
    .replace('not ok 1 - z', '')
  t.equal(read(own, { code: 1 }).failed, 1, 'of the subtest around it')
  t.equal(read('# Subtest: a\n    1..0\nok 1 - a\nnot ok 2 - b\n1..2', { code: 1 }).failed, 1)
  t.end()
})

t.test('a file without subtests counts as one test', (t) => {
  t.match(read('ok 1 - x\nok 2 - y\n1..2'), { passed: 1, failed: 0, tests: [{ ms: 70 }] })
  t.match(read('ok 1 - x\nnot ok 2 - y\n1..2', { code: 1 }), { passed: 0, failed: 1 })
  t.match(read('1..0 # SKIP not here'), { passed: 0, failed: 0, skipped: 1 })
  t.end()
})

t.test('a program that ends too early counts as a failure', (t) => {
  t.match(read('# Subtest: a\n    ok 1 - x\n    1..1\nok 1 - a'), { passed: 1, failed: 1 })
  t.match(read('', { code: 137 }), { failed: 1, notes: ['not ok - file: it ended with 137'] })
  t.end()
})

t.test('in a flat list every result counts as a test, with its time', (t) => {
  const { passed, failed, skipped, tests } = read(
    'ok 1 - iptables: a # time=5ms\nnot ok 2 - iptables: b # time=6ms\nok 3 - c # SKIP x\n1..3',
    { code: 1, isFlat: true },
  )
  t.same({ passed, failed, skipped }, { passed: 1, failed: 1, skipped: 1 })
  t.match(tests, [
    { name: 'file: iptables: a', ms: 5 },
    { name: 'file: iptables: b', ms: 6 },
  ])
  t.end()
})

t.test('a place in a compiled file gets the place in its source beside it', (t) => {
  const [, compiled = ''] = /(build\/test\/house\/[^)]*)/.exec(new Error('here').stack ?? '') ?? []
  const line = readFileSync('test/house/tap-reader.test.ts', 'utf8')
    .split('\n')
    .findIndex((text) => text.includes("new Error('here')"))
  t.match(withSourcePlaces(`at ${compiled}`), ` (test/house/tap-reader.test.ts:${line + 1}:`)
  for (const other of ['build/none.js:1:1', 'at lib/main.ts:3:4', 'in 1:2'])
    t.equal(withSourcePlaces(other), other)
  t.end()
})
