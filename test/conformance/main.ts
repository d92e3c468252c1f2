import { availableParallelism } from 'node:os'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { withUsage } from '../support/usage.js'
import { quoted } from '../support/guest.js'
import { mountOf } from '../../lib/kernel/cgroup.js'
import { createWorld } from '../../lib/lab/world/world.js'
import type { World } from '../../lib/lab/world/world.js'
import type { Case } from './case.js'
import { readCases } from './case-file.js'
import { casesFolder } from './cases-folder.js'
import { DaemonSubject } from './daemon-subject.js'
import { skips, withoutSctp } from './mode-profiles.js'
import { ProcessSubject, subjectCommand } from './process-subject.js'
import { tableText, tapLine, writeSummary } from './report.js'
import type { ModeResults } from './report.js'
import { runCases } from './runner.js'
import { keptBy, profileOf, variantNames, variantOf } from './variants.js'
import type { CaseResult } from './runner.js'

const usage =
  'npm run conformance -- [--mode NAME]... [--only TEXT]... [--json FILE] [--list] [--quiet] [--in-uml] [--daemon] [--jobs N]'
const parse = () =>
  parseArgs({
    options: {
      mode: { type: 'string', multiple: true },
      only: { type: 'string', multiple: true },
      json: { type: 'string' },
      /** The number of modes that run at once. */
      jobs: { type: 'string', default: String(Math.min(2, availableParallelism())) },
      list: { type: 'boolean', default: false },
      quiet: { type: 'boolean', default: false },
      /** Tests the whole command with a folder of manifests, instead of tracker and mode only. */
      daemon: { type: 'boolean', default: false },
      /** Runs in User Mode Linux, for modes that the kernel of this machine does not support. */
      'in-uml': { type: 'boolean', default: false },
    },
  })
const { values } = withUsage(usage, parse)

const isWanted = ({ topic, name }: Case) =>
  values.only === undefined ||
  values.only.some((text) => topic === text || `${topic}: ${name}`.includes(text))

const cases = readCases(casesFolder).filter(isWanted)
if (cases.length === 0) {
  console.error(`no case matches --only ${(values.only ?? []).join(' --only ')}; see --list`)
  process.exitCode = 2
} else if (values.list) {
  for (const { topic, name } of cases) console.log(`${topic}: ${name}`)
  console.log(`${cases.length} cases`)
} else if (values['in-uml']) {
  process.exitCode = await runAgainInUml()
} else {
  process.exitCode = await runModes(values.mode ?? variantNames)
}

/** Runs the same command line in User Mode Linux. Its output appears at once. */
async function runAgainInUml(): Promise<number> {
  // It looks for User Mode Linux, which takes a program.
  const { runInUml, umlPatience, umlSkip } = await import('../support/uml.js')
  if (umlSkip) {
    console.log(`# left out: ${umlSkip}`)
    return 0
  }
  const own = process.argv.slice(2).filter((argument) => argument !== '--in-uml')
  const words = [process.execPath, fileURLToPath(import.meta.url), ...own].map(quoted)
  const command = [umlPatience, ...words].join(' ')
  const timeoutMs = 1_200_000
  const { code } = await runInUml(command, { timeoutMs, onLine: (line) => console.log(line) })
  return code
}

async function runModes(names: readonly string[]): Promise<number> {
  const modes: ModeResults[] = []
  let number = 0
  console.log('TAP version 14')
  const queue = names.values()
  // Modes can run at once: their worlds are separate, and most of a run is waiting.
  const lane = async () => {
    for (const name of queue) {
      const results = await runMode(name, (result) => {
        number++
        if (!values.quiet || result.outcome === 'failed') {
          process.stdout.write(tapLine(number, name, result))
        }
      })
      if (results) modes.push({ mode: name, results })
    }
  }
  await Promise.all(Array.from({ length: Number(values.jobs) }, lane))
  modes.sort((one, other) => names.indexOf(one.mode) - names.indexOf(other.mode))
  console.log(`1..${number}`)
  console.log(tableText(modes, { isShort: values.quiet }).replaceAll(/^/gm, '# '))
  const count = (outcome: CaseResult['outcome']) =>
    modes.flatMap(({ results }) => results).filter((result) => result.outcome === outcome).length
  console.log(`${count('passed')} passed, ${count('failed')} failed`)
  if (values.json !== undefined) writeSummary(values.json, modes)
  return count('failed') > 0 ? 1 : 0
}

/** Runs one mode in a world of its own. There is no result if this kernel lacks what it needs. */
async function runMode(
  name: string,
  onResult: (result: CaseResult) => void,
): Promise<readonly CaseResult[] | undefined> {
  const variant = variantOf(name)
  const mode = variant && profileOf(variant)
  const world = await createWorld({
    name: name.replace(/[^a-z0-9]/g, '').slice(0, 16),
    // The programs of ebpf mode must not see the sockets of other places, which are other machines.
    withCgroup: mode === 'ebpf' && mountOf('cgroup2') !== undefined,
  })
  try {
    const missing = await missingFor(world, name)
    if (missing.length > 0) {
      console.log(`# ${name} cannot run on this kernel: ${missing.join('; ')}`)
      return undefined
    }
    return await runCases({
      world,
      subject: values.daemon && variant ? new DaemonSubject(variant) : new ProcessSubject(name),
      cases,
      mode,
      ...(variant ? keptBy(variant) : {}),
      skips: [...skips[mode ?? 'nftables'], ...(world.hasSctp ? [] : [withoutSctp])],
      onResult,
    })
  } finally {
    await world.close()
  }
}

async function missingFor(world: World, name: string): Promise<readonly string[]> {
  const result = await world.exec('node', [...subjectCommand, name, 'probe'])
  if (result.code !== 0) throw new Error(`ask what ${name} needs: ${result.stderr}`)
  return JSON.parse(result.stdout) as readonly string[]
}
