import t from 'tap'
import { memoryByFacts } from '../../lib/modes/planner-memory.js'

void t.test('the memory of each IP family is kept while its facts are equal', (t) => {
  interface Facts {
    readonly bits: bigint
    readonly own: ReadonlySet<string>
  }
  const facts = (bits: bigint, ...own: string[]): Facts => ({ bits, own: new Set(own) })
  const given: (string | undefined)[] = []
  const memoryFor = memoryByFacts<Facts, string>(({ bits, own }, before) => {
    given.push(before)
    return `${bits} ${[...own].join()}`
  })
  t.equal(memoryFor('IPv4', facts(1n, 'a')), '1 a')
  t.equal(memoryFor('IPv4', facts(1n, 'a')), '1 a')
  t.same(given, [undefined], 'equal facts built anew are the same')
  t.equal(memoryFor('IPv6', facts(1n, 'a')), '1 a')
  t.equal(memoryFor('IPv4', facts(2n, 'a')), '2 a')
  t.equal(memoryFor('IPv4', facts(2n, 'b')), '2 b')
  t.same(given, [undefined, undefined, '1 a', '2 a'], 'with what was kept before')
  t.end()
})
