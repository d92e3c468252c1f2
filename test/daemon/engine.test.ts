import { execFileSync } from 'node:child_process'
import t from 'tap'

const engine = new URL('../../lib/daemon/engine.js', import.meta.url).href

/** Runs a script in a new process, because V8 flags cannot be unset, and returns its output. */
function printed(script: string, ...flags: readonly string[]): string {
  const argv = [...flags, '--input-type=module', '--eval', script]
  return execFileSync(process.execPath, argv, { encoding: 'utf8', env: {} }).trim()
}

const prepare = `import { setUpEngine } from '${engine}'; setUpEngine()`

t.test('the nursery of the heap stays small in the program that a node runs', (t) => {
  const sizeAfter = (first: string) =>
    Number(
      printed(`${first}
        import { getHeapSpaceStatistics } from 'node:v8'
        const kept = []
        for (let index = 0; index < 1e6; index++) kept[index % 20_000] = { index }
        const found = getHeapSpaceStatistics().find((space) => space.space_name === 'new_space')
        console.log(found.space_size / 1024 / 1024)`),
    )
  t.ok(sizeAfter(prepare) <= 4)
  t.ok(sizeAfter('') > 4, 'which V8 would not do by itself')
  t.end()
})

const countsCalls = Number.parseInt(process.versions.v8) >= 12

t.test(
  'V8 optimizes what is busy, and leaves alone what a start runs some thousand times',
  { skip: countsCalls && 'this V8 counts calls instead' },
  (t) => {
    const isOptimizedAfter = (first: string, calls: number) =>
      printed(
        `${first}
        const busy = (value) => (value * 31 + 7) % 1009;
        const run = (calls) => { let sum = 0; while (calls-- > 0) sum = busy(sum) };
        // Otherwise V8 inlines busy here and does not optimize it by itself.
        %NeverOptimizeFunction(run);
        run(${calls});
        console.log((%GetOptimizationStatus(busy) & 16) !== 0)`,
        '--allow-natives-syntax',
        // V8 compiles at once, so that the script need not wait.
        '--no-concurrent-recompilation',
      )
    t.equal(isOptimizedAfter('', 20_000), 'true', 'as V8 does it by itself')
    t.equal(isOptimizedAfter(prepare, 20_000), 'false')
    t.equal(isOptimizedAfter(prepare, 500_000), 'true')
    t.end()
  },
)
