import { parseArgs } from 'node:util'
import type { ModeName } from '../../lib/config/config.js'
import { messageOf } from '../../lib/errors.js'
import { chooseMode } from '../../lib/modes/choose.js'
import { isModeName } from '../../lib/modes/registry.js'
import { contextOf } from '../support/mode-context.js'
import { netnsSkip } from '../support/netns.js'
import { withUsage } from '../support/usage.js'
import { playsIn, randomOf, type Fault } from './fault.js'
import { faultGroups } from './faults/index.js'
import { chaosModes } from './promises.js'
import { play, type Outcome } from './play.js'
import { Stage } from './stage.js'
import { storm } from './storm.js'

const usage =
  'npm run chaos -- [--mode NAME]... [--only TEXT]... [--seed N] [--minutes N [--changes N]] [--list]'
const parse = () =>
  parseArgs({
    options: {
      mode: {
        type: 'string',
        multiple: true,
        default: [...chaosModes],
      },
      only: { type: 'string', multiple: true },
      seed: { type: 'string', default: String(Date.now() % 1_000_000) },
      /** For so long everything happens at once, instead of one fault after the other. */
      minutes: { type: 'string' },
      /** How many Services change each second meanwhile. */
      changes: { type: 'string', default: '20' },
      list: { type: 'boolean', default: false },
    },
  })
const { values } = withUsage(usage, parse)

const seed = Number(values.seed)
const isWanted = ({ name }: Fault) =>
  values.only?.some((text) => name.toLowerCase().includes(text.toLowerCase())) ?? true
const groups = faultGroups.map((group) => ({ ...group, faults: group.faults.filter(isWanted) }))
const faults = groups.flatMap((group) => group.faults)

const widths = [84, 9, 14, 14, 8, 40]
function cells(texts: readonly string[]): string {
  return texts
    .map((text, index) => text.padEnd(widths[index] ?? 0))
    .join('  ')
    .trimEnd()
}
const heading = cells(['fault', 'mode', 'new: lost/of', 'open: lost/of', 'seconds', 'target'])

if (values.list) {
  for (const { name, modes } of faults)
    console.log(`${name}${modes ? ` (${modes.join(', ')})` : ''}`)
} else if (faults.length === 0) {
  console.error(`no fault is called ${(values.only ?? []).join(' or ')}; see --list`)
  process.exitCode = 2
} else if (netnsSkip !== false) {
  console.error(`chaos: ${netnsSkip}; run it as root`)
  process.exitCode = 2
} else {
  console.log(`seed ${seed}; --seed ${seed} plays the same again`)
  const failures: string[] = []
  for (const mode of values.mode) {
    if (!isModeName(mode)) throw new Error(`there is no mode ${mode}`)
    const missing = await missingFor(mode)
    if (missing !== undefined)
      console.log(`${mode}: skipped, this kernel cannot run it: ${missing}`)
    else if (values.minutes === undefined) failures.push(...(await playAll(mode)))
    else {
      const [minutes, changes] = [Number(values.minutes), Number(values.changes)]
      failures.push(...(await storm({ mode, minutes, changes, seed, groups })))
      if (failures.length > 0) break
    }
  }
  for (const failure of failures) console.log(`\nFAILED ${failure}`)
  console.log(failures.length === 0 ? '\nevery target was met' : `\n${failures.length} missed`)
  // Parts of a storm that failed may still wait for something that does not come.
  process.exit(failures.length === 0 ? 0 : 1)
}

async function missingFor(mode: ModeName): Promise<string | undefined> {
  try {
    await chooseMode({ mode, fallback: 'none' }, contextOf().context.log)
    return undefined
  } catch (error) {
    return messageOf(error)
  }
}

/** Plays one fault after the other. Those without special needs share one stage. */
async function playAll(mode: ModeName): Promise<readonly string[]> {
  const failures: string[] = []
  let shared: Stage | undefined
  const random = randomOf(seed)
  console.log(heading)
  for (const fault of faults.filter((each) => playsIn(each, mode))) {
    const isAlone = fault.stage !== undefined
    const stage =
      (isAlone ? undefined : shared) ?? (await Stage.open({ mode, random, ...fault.stage }))
    const missed = await playOn(stage, fault)
    failures.push(...missed.map((text) => `${fault.name}, ${mode}: ${text}`))
    const isKept = !isAlone && missed.length === 0
    if (!isKept) await stage.close()
    if (!isAlone) shared = isKept ? stage : undefined
  }
  await shared?.close()
  return failures
}

/** Plays a fault and returns the promises that were broken. */
async function playOn(stage: Stage, fault: Fault): Promise<readonly string[]> {
  try {
    const outcome = await play(fault, stage)
    console.log(rowOf(outcome))
    const slow = outcome.slow ? [`${outcome.seconds.toFixed(1)} s to recovery`] : []
    return [...outcome.broken, ...slow]
  } catch (error) {
    console.log(cells([fault.name, stage.mode, '', '', 'never', '']))
    return [messageOf(error)]
  }
}

function rowOf({ fault, mode, fresh, open, seconds, target }: Outcome): string {
  return cells([
    ...[fault, mode, `${fresh.lost}/${fresh.tried}`, `${open.lost}/${open.tried}`],
    ...[seconds.toFixed(1), `new: ${target.fresh}, open: ${target.open}, ${target.seconds} s`],
  ])
}
