// Boots Debian's kernels and runs every mode in each; see docs/kernels.md, whose table it writes.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { writeBundles } from '../build/test/support/bundles.js'
import { columns } from '../build/test/kernels/columns.js'
import { withTable } from '../build/test/kernels/document.js'
import { cache, imageOf, nameIn } from '../build/test/kernels/kernel-image.js'
import { Suite } from '../build/test/support/debian-packages.js'
import { chooseAccelerator, qemuSkip, runInQemu } from '../build/test/kernels/qemu.js'
import { Results, Run } from '../build/test/kernels/results.js'
import { commandFor, modes } from '../build/test/kernels/parts.js'
import { toolsOf } from '../build/test/kernels/tools.js'
import { withUsage } from '../build/test/support/usage.js'

const usage = `npm run kernels -- [--kernel 6.12]... [--mode NAME]... [--only TEXT]... [--suite NAME]...
         [--part NAME]... [--tools SUITE] [--accel kvm|tcg] [--minutes N] [--no-docs]
  docs/kernels.md says what each means, and holds the table that this writes`
const options = {
  kernel: { type: 'string', multiple: true },
  mode: { type: 'string', multiple: true, default: modes },
  /** Only packet cases with this topic or text. */
  only: { type: 'string', multiple: true },
  /** `own`: the package lists of this machine. Lists of other suites go into the cache folder. */
  suite: {
    type: 'string',
    multiple: true,
    default: ['own', 'trixie', 'sid', 'trixie-backports'],
  },
  /** Columns of the table; all columns after the probe need it. */
  part: { type: 'string', multiple: true, default: [...columns] },
  /** A suite whose nft, iptables and ipset are used instead of those of this machine. */
  tools: { type: 'string' },
  accel: { type: 'string' },
  minutes: { type: 'string', default: '30' },
  /** Leaves docs/kernels.json and the page as they are. */
  'no-docs': { type: 'boolean', default: false },
}
const { values } = withUsage(usage, () => parseArgs({ options }))

const skip = qemuSkip()
if (skip) {
  console.log(`# left out: ${skip}`)
  process.exit(0)
}
mkdirSync(cache, { recursive: true })
await writeBundles()
const began = Date.now()
const own = Suite.open('own', cache)
const chosen = new Map()
for (const suite of suitesUntil(() => values.kernel?.every((name) => chosen.has(name)) ?? false)) {
  const name = nameIn(suite)
  if (name === undefined) console.log(`# not to be had: ${suite.name} has no cloud kernel`)
  else if (chosen.has(name)) console.log(`# ${suite.name} has ${name} too`)
  else chosen.set(name, suite)
}
const wanted = values.kernel ?? [...chosen.keys()]
for (const name of wanted.filter((each) => !chosen.has(each))) {
  console.log(
    `# not to be had: kernel ${name}; the suites ${values.suite.join(', ')} have ${[...chosen.keys()].join(', ')}`,
  )
}
let failed = 0
for (const name of wanted) {
  const suite = chosen.get(name)
  const kernel = suite && unpacked(suite)
  if (kernel) failed += await runKernel(kernel)
  else failed++
}
console.log(`# ${Math.round((Date.now() - began) / 1000)} s; ${failed} failed`)
process.exitCode = failed > 0 ? 1 : 0

/** Reads suites until all wanted kernels are found, because the lists of a suite take seconds. */
function* suitesUntil(isEnough) {
  for (const name of values.suite) {
    if (isEnough()) return
    try {
      yield name === 'own' ? own : Suite.open(name, cache)
    } catch (error) {
      console.log(`# not to be had: ${error.message}`)
    }
  }
}

/** Names a kernel that cannot be had; the others still run. */
function unpacked(suite) {
  try {
    return imageOf(suite, own)
  } catch (error) {
    console.log(`# not to be had: the kernel of ${suite.name}: ${error.message}`)
    return undefined
  }
}

/** Adds a run to the files as they are now, because another run may have changed them. */
function keep(run) {
  if (values['no-docs']) return
  const results = Results.read('docs/kernels.json')
  results.keep(run)
  results.write('docs/kernels.json')
  const page = 'docs/kernels.md'
  writeFileSync(page, withTable(readFileSync(page, 'utf8'), results))
}

/** Boots a kernel once and plays all modes in it. */
async function runKernel(kernel) {
  const accelerator = values.accel ?? (await chooseAccelerator(kernel))
  const programs = values.tools === undefined ? {} : toolsOf(Suite.open(values.tools, cache))
  const run = new Run({
    kernel,
    accelerator,
    tools: values.tools ?? 'own',
  })
  console.log(`# Linux ${kernel.release} (${kernel.version}, ${kernel.suite}) by ${accelerator}`)
  const command = commandFor({
    modes: values.mode,
    only: values.only,
    parts: values.part,
  })
  const options = { accelerator, programs, timeoutMs: Number(values.minutes) * 60_000 }
  const onLine = (line) => {
    console.log(line)
    run.read(line)
    // Results are kept at once, because somebody may end a long run.
    if (/^(not )?ok /.test(line)) keep(run)
  }
  const died = await runInQemu(kernel, command, { ...options, onLine }).then(
    () => run.ended(),
    (error) => error.message,
  )
  if (died !== undefined) {
    console.log(died.replaceAll(/^/gm, '# '))
    run.died(died.split(';')[0])
  }
  keep(run)
  return run.failures + (died === undefined ? 0 : 1)
}
