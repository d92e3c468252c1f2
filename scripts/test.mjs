// Runs every tier and adds them up. The last line is `N passed, N failed`.
//   node scripts/test.mjs [tier …]      tiers: lint unit kernel conformance uml browser
import { spawn } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'

/** What a test imports tells what it needs: a world or a namespace, another kernel, a browser. */
const sourceOf = (file) => readFileSync(file, 'utf8')
const isUmlTest = (file) => /support\/uml\.js/.test(sourceOf(file))
const isBrowserTest = (file) => /\.browser\.test\.js$/.test(file)
const isKernelTest = (file) =>
  !isUmlTest(file) &&
  !isBrowserTest(file) &&
  /(world\/world|netns|e2e\/stage|\/stage)\.js|runCommand|kernel\.test/.test(
    `${file} ${sourceOf(file)}`,
  )

const chosen = process.argv.slice(2)
// In the inner loop only changed files are linted; a change of types elsewhere is caught by the whole.
const lintCache =
  chosen.length > 0
    ? ['--cache', '--cache-strategy=content', '--cache-location=build/.eslintcache']
    : []

const files = listTests('build/test')
const tiers = {
  lint: () =>
    commands([
      ['npx', ['eslint', '--max-warnings=0', ...lintCache, 'lib', 'test', 'bench']],
      [
        'npx',
        [
          'prettier',
          '--check',
          '--log-level=warn',
          'lib',
          'test',
          'bench',
          'scripts',
          'eslint.config.js',
        ],
      ],
    ]),
  unit: () =>
    tap(
      files.filter((file) => !isKernelTest(file) && !isUmlTest(file) && !isBrowserTest(file)),
      120,
    ),
  kernel: () => tap(files.filter(isKernelTest), 300),
  conformance: () => conformance(),
  uml: () => tap(files.filter(isUmlTest), 1500),
  browser: () => tap(files.filter(isBrowserTest), 300),
}

const unknown = chosen.filter((name) => !(name in tiers))
if (unknown.length > 0) {
  console.error(`unknown tier ${unknown.join(', ')}; there are: ${Object.keys(tiers).join(', ')}`)
  process.exit(2)
}

const total = { passed: 0, failed: 0 }
const rows = []
/** Every failure with what explains it, to be read again at the end of a long run. */
const failures = []
const names = chosen.length > 0 ? chosen : Object.keys(tiers)
// Lint is one thread that waits for nobody, so the unit tests run beside it; all else runs alone.
const isLight = (name) => name === 'lint' || name === 'unit'
await Promise.all(names.filter(isLight).map(runTier))
for (const name of names.filter((name) => !isLight(name))) await runTier(name)
console.log('')
if (failures.length > 0) console.log(`=== what failed\n${failures.join('\n')}\n`)
console.table(rows)
console.log(`${total.passed} passed, ${total.failed} failed`)
process.exitCode = total.failed > 0 || total.passed === 0 ? 1 : 0

async function runTier(name) {
  console.log(`\n=== ${name}`)
  const began = Date.now()
  const result = await tiers[name]()
  total.passed += result.passed
  total.failed += result.failed
  rows.push({ tier: name, ...result, seconds: Math.round((Date.now() - began) / 1000) })
}

function listTests(folder) {
  return readdirSync(folder, { recursive: true })
    .map((file) => `${folder}/${file}`)
    .filter((file) => file.endsWith('.test.js'))
    .sort()
}

/** Each command is one check. */
async function commands(list) {
  const result = { passed: 0, failed: 0 }
  for (const [file, args] of list) {
    const code = await run(file, args, (line) => console.log(line))
    const line = `${code === 0 ? 'ok' : 'not ok'} - ${[file, ...args].join(' ')}`
    console.log(line)
    if (code === 0) result.passed++
    else {
      result.failed++
      failures.push(line)
    }
  }
  return result
}

/** Passed and failed are tap's own totals; a run that dies without them is one failure. */
async function tap(list, timeoutSeconds = 60) {
  if (list.length === 0) return { passed: 0, failed: 0 }
  const result = { passed: 0, failed: 0, skipped: 0 }
  const args = ['tap', '--reporter=tap', `--timeout=${timeoutSeconds}`, '--jobs=2', ...list]
  const isOfFailure = failureLines()
  const code = await run('npx', args, (line) => {
    const totals = /^# \{ total: \d+,(.*)\}$/.exec(line)
    if (totals) {
      const count = (name) => Number(new RegExp(`${name}: (\\d+)`).exec(totals[1])?.[1] ?? 0)
      Object.assign(result, {
        passed: count('pass'),
        failed: count('fail'),
        skipped: count('skip'),
      })
    }
    // A failure is shown with the block that explains it, a skip with its reason.
    const isFailure = isOfFailure(line)
    if (isFailure) failures.push(line)
    if (isFailure || /# skip|^\s*Bail out|timeout!/i.test(line)) console.log(line)
  })
  if (code !== 0 && result.failed === 0) result.failed = 1
  return result
}

/** The suite of test/cases, as real packets, over every mode this kernel can run; see docs/testing.md. */
async function conformance() {
  let last
  const isOfFailure = failureLines()
  await run('node', ['build/test/conformance/main.js', '--quiet'], (line) => {
    console.log(line)
    if (isOfFailure(line)) failures.push(line)
    const match = /^(\d+) passed, (\d+) failed/.exec(line)
    if (match) last = { passed: Number(match[1]), failed: Number(match[2]) }
  })
  return last ?? { passed: 0, failed: 1 }
}

/** Tells of one line of TAP after the other whether it is a failure or belongs to its block. */
function failureLines() {
  let depth = -1
  return (line) => {
    const own = line.length - line.trimStart().length
    if (/^\s*not ok /.test(line)) depth = own
    else if (depth >= 0 && line.trim() !== '' && own <= depth) depth = -1
    return depth >= 0
  }
}

function run(file, args, onLine) {
  return new Promise((resolve) => {
    const env = {
      ...process.env,
      npm_config_loglevel: 'error',
      PATH: `${process.env.PATH}:/usr/sbin:/sbin`,
    }
    const child = spawn(file, args, { stdio: ['ignore', 'pipe', 'pipe'], env })
    for (const stream of [child.stdout, child.stderr])
      createInterface({ input: stream }).on('line', onLine)
    child.on('error', (error) => {
      console.error(`${file}: ${error.message}`)
      resolve(127)
    })
    child.on('close', (code) => resolve(code ?? 1))
  })
}
