// Runs every tier and adds them up. The last line is `N passed, N failed`.
import { spawn } from 'node:child_process'
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { flagsToOptimizeLater } from '../build/lib/engine.js'
import { withoutPins } from '../build/lib/lab/world/cgroups.js'
import { withUsage } from '../build/test/support/usage.js'
import { putProgramTogether } from './node-program.mjs'
import { withSourcePlaces } from './source-places.mjs'
import { TapReader } from './tap-reader.mjs'
import { putTapTogether } from './test-library.mjs'

/** What a test imports tells what it needs: a world or a namespace, another kernel, a browser. */
const sourceOf = (file) => readFileSync(file, 'utf8')
const isUmlTest = (file) => /support\/uml\.js/.test(sourceOf(file))
const isBrowserTest = (file) => /\.browser\.test\.js$/.test(file)
const isKernelTest = (file) =>
  !isUmlTest(file) &&
  !isBrowserTest(file) &&
  /(world\/world|netns|\/proxy-world)\.js|runCommand|kernel\.test/.test(`${file} ${sourceOf(file)}`)

/** What a test uses that the next test in the same process would notice. */
const needsOwnProcess = (file) =>
  /process\.|_process|worker_threads|globalThis|node:test|played-time|\/proc\/self|startServer|^t\.(before|after|teardown)/m.test(
    sourceOf(file),
  )

const usage = `node scripts/test.mjs [--times] [TIER]...
  tiers: lint unit kernel conformance uml browser; without names all of them
  --times    prints what each job cost: seconds of processor time, and seconds in all,
             and more of the slowest tests`
const { values: options, positionals: chosen } = withUsage(usage, () =>
  parseArgs({ options: { times: { type: 'boolean', default: false } }, allowPositionals: true }),
)
/** Seconds until a file counts as stuck. A busy machine is only slow. */
const patience = { short: 1200, long: 1800 }
const files = listTests('build/test')
/** Jobs that take a minute or more. They begin first, so that nobody waits for one at the end. */
const longJobs = [
  'User Mode Linux',
  'build/test/chaos/chaos.kernel.test.js',
  'build/test/observe/flows/flows.kernel.test.js',
  'build/test/observe/flows/userspace-numbers.kernel.test.js',
  'build/test/modes/userspace/rules.kernel.test.js',
  'build/test/modes/userspace/source-address.kernel.test.js',
  'build/test/security/confined.test.js',
  'build/test/package/package.test.js',
  'build/test/package/deb.test.js',
  'build/test/cli/kubectl.test.js',
  'build/test/cli/kubectl.kernel.test.js',
  'build/test/cli/diff.kernel.test.js',
]
const unitFiles = files.filter(
  (file) => !isKernelTest(file) && !isUmlTest(file) && !isBrowserTest(file),
)
/** The jobs of each tier. They do not depend on each other. */
const tiers = {
  uml: async () => [await umlMachine(), ...files.filter(isUmlTest).map(file(patience.short))],
  lint: () => [
    command('oxlint', ['--deny-warnings', 'lib', 'test', 'bench']),
    command('oxfmt', ['--check', 'lib', 'test', 'bench', 'scripts']),
  ],
  unit: () => [
    ...unitFiles.filter(needsOwnProcess).map(file(patience.short)),
    ...rooms(
      'unit',
      unitFiles.filter((file) => !needsOwnProcess(file)),
    ).map(file(patience.long)),
  ],
  kernel: () => files.filter(isKernelTest).map(file(patience.long)),
  conformance: () => conformance(),
  // A room also shares its browser.
  browser: () => rooms('browser', files.filter(isBrowserTest)).map(file(patience.long)),
}

const unknown = chosen.filter((name) => !(name in tiers))
if (unknown.length > 0) {
  console.error(`unknown tier ${unknown.join(', ')}; there are: ${Object.keys(tiers).join(', ')}`)
  process.exit(2)
}

/** Hides the pins of eBPF mode, also those of other tests. */
const alone = process.getuid?.() === 0 ? withoutPins : []

const slowestShown = options.times ? 30 : 5
const names = Object.keys(tiers).filter((name) => chosen.length === 0 || chosen.includes(name))
const results = new Map()
let seenTicks = 0
const queue = []
if (names.includes('kernel') || names.includes('uml')) putProgramTogether()
if (names.some((name) => name !== 'lint')) await putTapTogether()
for (const tier of names) {
  const jobs = await tiers[tier]()
  results.set(tier, { left: jobs.length, jobs: [] })
  queue.push(...jobs.map((job) => ({ tier, ...job })))
}
// Most jobs wait for half of their time or more, those of the conformance for five sixths. So these
// run beside all others, and not at the end, when nobody would use the time.
const processors = Math.max(2, availableParallelism())
const waiting = queue.filter(({ tier }) => tier === 'conformance').values()
// A browser is dozens of processes, so one goes after the other.
const browsers = queue.filter(({ tier }) => tier === 'browser').values()
const working = queue
  .filter(({ tier }) => !/conformance|browser/.test(tier))
  .sort((one, other) => longJobs.includes(other.name) - longJobs.includes(one.name))
  .values()
let running = 0
const lanes = (length, order, begin = () => undefined) =>
  Array.from({ length }, async () => {
    for (const jobs of order) {
      for (;;) {
        await begin()
        const { value: job, done } = jobs.next()
        if (done) break
        running++
        await runJob(job)
        running--
      }
    }
  })
await Promise.all([
  ...lanes(processors * 2, [waiting, working]),
  ...lanes(1, [working, waiting]),
  ...lanes(1, [browsers, working, waiting]),
  ...lanes(processors * 2, [working, waiting], untilThereIsTime),
])
const unsteady = await runFailedAgain()
printFailures('failed beside other jobs, and passed alone', unsteady)
printFailures('what failed', failedJobs())
console.log('')
console.table(
  names.map((tier) => {
    const { seconds, jobs } = results.get(tier)
    const processor = jobs.reduce((total, job) => total + job.processor, 0)
    return { tier, ...countsOf(tier), seconds, 'processor s': Math.round(processor) }
  }),
)
const sum = (what) => names.reduce((total, tier) => total + countsOf(tier)[what], 0)
console.log(`${sum('passed')} passed, ${sum('failed')} failed`)
process.exitCode = sum('failed') > 0 || sum('passed') === 0 ? 1 : 0

/**
 * Resolves when one more job has time on the processors. On a slow machine all lanes together gain
 * nothing, and each test waits so long that its patience ends.
 */
async function untilThereIsTime() {
  while (running > 0 && pressure() > 90) await delay(1000)
}

/** The part of the last 10 s in which something waited for a processor, in percent. */
function pressure() {
  try {
    const text = readFileSync('/proc/pressure/cpu', 'utf8')
    return Number(/^some avg10=(\S+)/.exec(text)?.[1])
  } catch {
    // This kernel does not tell.
    return 0
  }
}

/** Runs a job and adds what its readers read to its tier. */
async function runJob({ tier, name, run }) {
  const result = results.get(tier)
  const began = Date.now()
  result.began ??= began
  const { readers, processor } = await run()
  const seconds = (Date.now() - began) / 1000
  result.jobs.push({ name, run, readers, processor, seconds })
  printNotes(`${tier}: ${name}`, readers)
  if (--result.left > 0) return
  result.seconds = Math.round((Date.now() - result.began) / 1000)
  const { passed, failed, skipped } = countsOf(tier)
  console.log(
    `\n=== ${tier}: ${passed} passed, ${failed} failed, ` +
      `${skipped} left out in ${result.seconds} s; the slowest:`,
  )
  const tests = result.jobs.flatMap(({ readers }) => readers.flatMap(({ tests }) => tests))
  const slowest = tests.sort((one, other) => other.ms - one.ms).slice(0, slowestShown)
  for (const { name, ms } of slowest) console.log(`${(ms / 1000).toFixed(1).padStart(7)} s ${name}`)
  if (options.times) printTimes(tier, result.jobs)
}

function countsOf(tier) {
  const counts = { passed: 0, failed: 0, skipped: 0 }
  for (const reader of results.get(tier).jobs.flatMap(({ readers }) => readers)) {
    for (const what of Object.keys(counts)) counts[what] += reader[what]
  }
  return counts
}

function printNotes(heading, readers) {
  for (const reader of readers) reader.notes = reader.notes.map(withSourcePlaces)
  const notes = readers.flatMap((reader) => reader.notes)
  if (notes.length > 0) console.log(`\n=== ${heading}\n${notes.join('\n')}`)
}

function failedJobs() {
  const jobs = [...results.values()].flatMap(({ jobs }) => jobs)
  return jobs.filter(({ readers }) => failedOf(readers).length > 0)
}

function failedOf(readers) {
  return readers.filter(({ failed }) => failed > 0)
}

/**
 * Runs what failed once more, with nothing beside it. A failure that does not come back is told
 * apart, because it is about time. Returns what failed the first time and passed the second.
 */
async function runFailedAgain() {
  const unsteady = []
  const jobs = failedJobs()
  // If much fails, the code is broken.
  if (jobs.flatMap(({ readers }) => failedOf(readers)).length > 5) return unsteady
  for (const job of jobs) {
    const failed = failedOf(job.readers)
    console.log(`\n=== once more, alone: ${job.name}`)
    const { readers } = await job.run(failed.map(({ name }) => name))
    printNotes(job.name, readers)
    if (failedOf(readers).length > 0) continue
    unsteady.push({ name: job.name, readers: failed })
    job.readers = [...job.readers.filter(({ failed }) => failed === 0), ...readers]
  }
  return unsteady
}

/** The lines that explain them are above, where the job ended. */
function printFailures(heading, jobs) {
  if (jobs.length > 0) console.log(`\n=== ${heading}`)
  for (const { name, readers } of jobs) {
    const lines = failedOf(readers)
      .flatMap(({ notes }) => notes)
      .filter((line) => /^\s*not ok|^Bail out|^\s+[-+][^-+]/.test(line))
    console.log([`${name}:`, ...lines.map((line) => line.slice(0, 1000))].join('\n'))
  }
}

/** Prints the most expensive jobs first. */
function printTimes(tier, jobs) {
  console.log(`\n=== ${tier}: seconds of processor time, seconds in all`)
  for (const { name, processor, seconds } of jobs.sort((a, b) => b.processor - a.processor)) {
    console.log(`${processor.toFixed(1).padStart(7)} ${seconds.toFixed(1).padStart(7)} ${name}`)
  }
}

/**
 * Puts the files of each room into one process, because its start takes longer than most of them.
 * A file alone is still a process of its own.
 */
function rooms(tier, files) {
  const roomOf = (file) => file.split('/')[2]
  return [...new Set(files.map(roomOf))].map((room) => {
    const own = files.filter((file) => roomOf(file) === room)
    if (own.length === 1) return own[0]
    const together = `build/test/${room}.${tier}.js`
    const lines = own.map((file) => `await import('./${file.slice('build/test/'.length)}')\n`)
    writeFileSync(together, lines.join(''))
    return together
  })
}

function listTests(folder) {
  return readdirSync(folder, { recursive: true })
    .map((file) => `${folder}/${file}`)
    .filter((file) => file.endsWith('.test.js'))
    .sort()
}

/** A command is one test. */
function command(tool, args) {
  const name = [tool, ...args].join(' ')
  const run = async () => {
    const lines = []
    const began = Date.now()
    const onLine = (line) => lines.push(line)
    const { code, processor } = await start(`node_modules/.bin/${tool}`, args, { onLine })
    const ms = Date.now() - began
    const isWell = code === 0
    const notes = isWell ? [] : [...lines, `not ok - ${name}`]
    const tests = [{ name, ms }]
    const counts = { passed: Number(isWell), failed: Number(!isWell), skipped: 0 }
    return { readers: [{ name, ...counts, tests, notes }], processor }
  }
  return { name, run }
}

/** A file of tests, in a process of its own. */
function file(timeoutSeconds) {
  return (path) => ({
    name: path,
    run: () => runTap(path, [path], { timeoutSeconds }),
  })
}

async function runTap(name, args, { timeoutSeconds, ...options }) {
  const reader = new TapReader(name.replace('build/test/', ''), options)
  const began = Date.now()
  const [program, ...words] = [...alone, process.execPath, ...flagsToOptimizeLater, ...args]
  const onLine = (line) => reader.read(line)
  const { code, processor } = await start(program, words, { onLine, timeoutSeconds })
  reader.end(code, Date.now() - began)
  return { readers: [reader], processor }
}

/** The suite of test/cases, as real packets, over every mode this kernel can run; see docs/testing.md. */
async function conformance() {
  const { variantNames } = await import('../build/test/conformance/variants.js')
  return variantNames.map((mode) => {
    const args = ['build/test/conformance/main.js', '--mode', mode]
    const options = { timeoutSeconds: patience.long, isFlat: true }
    return { name: mode, run: () => runTap('conformance', args, options) }
  })
}

/**
 * A machine with IPVS for all that needs it; it has one processor and is one process here. Two of
 * them beside each other would take twice the processor time, and need as long as one after the
 * other. It goes first, because nothing takes longer.
 */
async function umlMachine() {
  const { umlSkip } = await import('../build/test/support/uml.js')
  const { parts: all, commandOf } = await import('../build/test/uml/parts.js')
  const { writeBundles } = await import('../build/test/support/bundles.js')
  if (!umlSkip) await writeBundles()
  const run = async (wanted) => {
    const parts = all.filter(({ name }) => wanted?.includes(name) ?? true)
    if (umlSkip) {
      const notes = [`# SKIP ${umlSkip}`]
      const skipped = parts.length
      return { readers: [{ passed: 0, failed: 0, skipped, tests: [], notes }], processor: 0 }
    }
    const timeoutSeconds = 4800
    const words = [process.execPath, 'scripts/uml-run.mjs', commandOf(parts)]
    return readParts(parts, (onLine) =>
      start('nice', ['-n', '-5', 'env', `UML_SECONDS=${timeoutSeconds}`, ...words], {
        onLine,
        timeoutSeconds,
      }),
    )
  }
  return { name: 'User Mode Linux', run }
}

/** A reader for each part of the machine. */
async function readParts(parts, boot) {
  const readers = new Map(
    parts.map(({ name }) => [name, new TapReader(name, { isFlat: name.includes('conformance') })]),
  )
  const all = []
  let reader
  let began = 0
  let lastLines = []
  const onLine = (line) => {
    const [, begin, end] = /^# (?:part (.*)|end (\d+))$/.exec(line) ?? []
    if (begin !== undefined) {
      reader = readers.get(begin)
      readers.delete(begin)
      began = Date.now()
      all.push(reader)
    } else if (end !== undefined) reader?.end(Number(end), Date.now() - began)
    else reader?.read(line)
  }
  const { code, processor } = await boot((line) => {
    lastLines = [...lastLines.slice(-40), line]
    onLine(line)
  })
  if (code === 0) return { readers: all, processor }
  for (const each of readers.values()) all.push(each)
  // The part that was running prints no more, and later parts never began.
  reader?.notes.push(...lastLines)
  for (const each of [reader, ...readers.values()]) each?.end(1, 0)
  return { readers: all, processor }
}

/** Runs a program and gives its exit code. */
function start(program, args, { onLine, timeoutSeconds }) {
  return new Promise((resolve) => {
    const env = {
      ...process.env,
      // Node would read these certificates at each start, for 0.08 s. No test leaves this machine.
      NODE_EXTRA_CA_CERTS: '',
      // Programs in Go (kubectl, helm, the types of oxlint) end before it is worth to collect garbage.
      GOGC: 'off',
      npm_config_loglevel: 'error',
      PATH: `${process.env.PATH}:/usr/sbin:/sbin`,
      ...(timeoutSeconds === undefined ? {} : { TAP_TIMEOUT: String(timeoutSeconds) }),
    }
    const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'pipe'], env })
    let processor = 0
    child.on('exit', () => (processor = spentSinceLast()))
    // tap ends a slow test before this and says which. This is for a program that hangs as a whole.
    const patience = timeoutSeconds === undefined ? 900 : timeoutSeconds + 20
    let late = ''
    const timer = setTimeout(() => {
      late = `, because it ran for ${patience} s`
      child.kill('SIGKILL')
    }, patience * 1000)
    for (const stream of [child.stdout, child.stderr]) {
      createInterface({ input: stream }).on('line', onLine)
    }
    child.on('error', (error) => onLine(`${program}: ${error.message}`))
    child.on('close', (code, signal) => {
      clearTimeout(timer)
      resolve({ code: code ?? `${signal}${late}`, processor })
    })
  })
}

/** Seconds of processor time that the kernel has added to this process for ended children. */
function spentSinceLast() {
  const fields = readFileSync('/proc/self/stat', 'utf8').replace(/^.*\)/s, '').trim().split(' ')
  const ticks = Number(fields[13]) + Number(fields[14])
  const seconds = (ticks - seenTicks) / 100
  seenTicks = ticks
  return seconds
}
