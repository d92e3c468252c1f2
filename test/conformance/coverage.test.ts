/** Checks that every behaviour in behaviours.yaml has a case or a test. */
import { readFileSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { parse } from 'yaml'
import { readCases } from './case-file.js'
import { casesFolder } from './cases-folder.js'

interface Behaviour {
  readonly id: string
  readonly what: string
  /** The beginning of the name of the case or test that covers it without citing it. */
  readonly by?: string
  /** Why nothing has to cover it. */
  readonly because?: string
}

const testsFolder = join(casesFolder, '..')

function readBehaviours(): readonly Behaviour[] {
  const file = join(testsFolder, 'conformance/behaviours.yaml')
  const groups = parse(readFileSync(file, 'utf8')) as Record<
    string,
    Record<string, string | Omit<Behaviour, 'id'>>
  >
  return Object.values(groups).flatMap((group) =>
    Object.entries(group).map(([id, said]) =>
      typeof said === 'string' ? { id, what: said } : { id, ...said },
    ),
  )
}

/** The texts after `test(`, and the names of cases in lists: all texts with an ID and a colon. */
function testNames(): readonly string[] {
  return readdirSync(testsFolder, { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.test.ts') && !file.endsWith('coverage.test.ts'))
    .flatMap((file) => {
      const text = readFileSync(join(testsFolder, file), 'utf8')
      const names = text.matchAll(/\btest\(\s*(?:'((?:[^'\\\n]|\\.)*)'|"([^"\n]*)"|`([^`]*)`)/g)
      return [...names].map(([, single, double, template]) => single ?? double ?? template ?? '')
    })
}

/**
 * An ID is cited by itself or in a span (`E11-E13`), and `service.go:1423-1540` by any line of it.
 */
function cites(name: string, id: string): boolean {
  const [, file, from, to = from] = /^(\w+\.go):(\d+)(?:-(\d+))?$/.exec(id) ?? []
  if (file !== undefined) {
    return [...name.matchAll(/(\w+\.go):(\d+)/g)].some(
      ([, cited, line]) =>
        cited === file && Number(line) >= Number(from) && Number(line) <= Number(to),
    )
  }
  const [, letters, number] = /^([A-Z]+)(\d+)$/.exec(id) ?? []
  return [...name.matchAll(/\b([A-Z]+)(\d+)(?:-([A-Z]+)(\d+))?\b/g)].some(
    ([, first, low, , high = low]) =>
      first === letters && Number(low) <= Number(number) && Number(number) <= Number(high),
  )
}

const cases = readCases(casesFolder).map(({ name }) => name)
const tests = testNames()

t.test('every behaviour of the list has a case, a test, or a reason', (t) => {
  const behaviours = readBehaviours()
  const tally = { cases: 0, tests: 0, reasons: 0 }
  for (const { id, what, by, because } of behaviours) {
    const isMeant = (name: string) => (by === undefined ? cites(name, id) : name.startsWith(by))
    if (cases.some(isMeant)) tally.cases++
    else if (tests.some(isMeant)) tally.tests++
    else if (because !== undefined && because !== '') tally.reasons++
    else t.fail(`${id} (${what}): no case and no test cites it${by === undefined ? '' : `: ${by}`}`)
  }
  t.comment(`${behaviours.length} behaviours: ${JSON.stringify(tally)}`)
  t.ok(behaviours.length > 160)
  t.end()
})

t.test('a behaviour that no case and no test cites is found', (t) => {
  t.equal(cites('S01 S07: x', 'S07'), true)
  t.equal(cites('S01 S07: x', 'S02'), false)
  t.equal(cites('E11-E13: x', 'E12'), true)
  t.equal(cites('E11-E13: x', 'E14'), false)
  t.equal(cites('e2e service.go:1470: x', 'service.go:1423-1540'), true)
  t.equal(cites('e2e service.go:1541: x', 'service.go:1423-1540'), false)
  t.end()
})
