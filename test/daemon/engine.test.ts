import { execFileSync } from 'node:child_process'
import t from 'tap'

const engine = new URL('../../lib/engine.js', import.meta.url).href

/** Runs a script in a new process, because V8 flags cannot be unset, and returns its output. */
function printed(script: string, ...flags: readonly string[]): string {
  const argv = [...flags, '--input-type=module', '--eval', script]
  return execFileSync(process.execPath, argv, { encoding: 'utf8', env: {} }).trim()
}

/** Loads a file as a thread. What the thread does without its settings does not matter. */
function loaded(file: string): string {
  const url = new URL(`../../lib/${file}`, import.meta.url).href
  return `import { Worker } from 'node:worker_threads'
    const thread = new Worker(\`
      import('${url}').catch(() => undefined).then(() => {
        require('node:worker_threads').parentPort.postMessage('loaded')
      })\`, { eval: true, workerData: {} })
    thread.on('error', () => undefined)
    // A thread may end before it says so, for want of settings.
    await new Promise((done) => thread.on('message', done).on('exit', done))`
}

const threads = [
  'modes/userspace/listeners/worker.js',
  'observe/flows/flow-worker.js',
  'sources/health/worker.js',
  'sources/manifest-worker.js',
]

const prepare = `import { setUpEngine } from '${engine}'; setUpEngine()`

t.test('the nursery of the heap stays small in the program that a node runs', (t) => {
  const sizeAfter = (first: string) =>
    Number(
      printed(`${first}
        import { getHeapSpaceStatistics } from 'node:v8'
        const kept = []
        for (let index = 0; index < 1e6; index++) kept[index % 20_000] = { index }
        const found = getHeapSpaceStatistics().find((space) => space.space_name === 'new_space')
        console.log(found.space_size / 1024 / 1024)
        process.exit()`),
    )
  t.ok(sizeAfter(prepare) <= 4)
  t.ok(sizeAfter('') > 4, 'which V8 would not do by itself')
  for (const thread of threads) {
    t.ok(sizeAfter(`${prepare}\n${loaded(thread)}`) <= 4, `also beside ${thread}`)
  }
  t.end()
})

/** From version 13 on, V8 has a compiler that takes functions sooner. */
const callsOfStart = Number.parseInt(process.versions.v8) >= 13 ? 2_000 : 20_000

t.test('V8 optimizes what is busy, and leaves alone what a start runs some thousand times', (t) => {
  const isOptimizedAfter = (first: string, calls: number) =>
    printed(
      `${first}
        const busy = (value) => (value * 31 + 7) % 1009;
        const run = (calls) => { let sum = 0; while (calls-- > 0) sum = busy(sum) };
        // Otherwise V8 inlines busy here and does not optimize it by itself.
        %NeverOptimizeFunction(run);
        run(100);
        const atFirst = %GetOptimizationStatus(busy);
        run(${calls});
        console.log(%GetOptimizationStatus(busy) !== atFirst)`,
      '--allow-natives-syntax',
      // V8 compiles at once, so that the script need not wait.
      '--no-concurrent-recompilation',
    )
  t.equal(isOptimizedAfter('', callsOfStart), 'true', 'as V8 does it by itself')
  t.equal(isOptimizedAfter(prepare, callsOfStart), 'false')
  t.equal(isOptimizedAfter(prepare, 500_000), 'true')
  t.end()
})

/** The threads of a node, each with as little as its maker needs. */
const makers: Readonly<Record<string, string>> = {
  'modes/userspace/listeners/worker-thread.js': 'new made.WorkerThread({}, {})',
  'observe/flows/flow-thread.js': 'new made.FlowThread({}, () => undefined)',
  'sources/health/check-thread.js':
    'const checks = new made.CheckThread({ targets: () => [] }); checks.set({}); checks.flush()',
  'sources/manifest-thread.js':
    'void made.parseInThread({}, new AbortController().signal).catch(() => undefined)',
}

t.test('threads start in a current folder that was deleted', (t) => {
  for (const [file, make] of Object.entries(makers)) {
    const url = new URL(`../../lib/${file}`, import.meta.url).href
    const folder = printed(`import { mkdtempSync, rmdirSync } from 'node:fs'
      const made = await import('${url}')
      process.chdir(mkdtempSync('/tmp/gone-'))
      // Node remembers the folder from now on.
      rmdirSync(process.cwd())
      ${make}
      console.log(process.cwd())
      process.exit(0)`)
    t.equal(folder, '/', file)
  }
  t.end()
})
