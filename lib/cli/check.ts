import type { Command } from 'commander'
import { messageOf } from '../errors.js'
import type { Finding, Log } from '../modes/mode.js'
import { modeLoaders, type ModeLoaders } from '../modes/registry.js'
import { missingSystem } from '../modes/systems.js'
import { defaultConfig } from '../config/load.js'
import { addOutputOptions, printed, type OutputFlags } from './shared-options.js'
import { processLogger } from './logging.js'

export interface ModeCheck {
  readonly mode: string
  readonly summary: string
  readonly runs: boolean
  readonly findings: readonly Finding[]
}

/**
 * Adds `kube-proxy check`: the modes that this node can run, why it cannot run the others, and what
 * to do about it.
 */
export function addCheckCommand(program: Command): void {
  const command = program
    .command('check')
    .description('show which modes this node can run, and what the others need')
  addOutputOptions(command).action(async (flags: OutputFlags) => {
    const checks = await checkModes(processLogger(defaultConfig().logging))
    process.stdout.write(printed(flags, { data: checks, text: formatChecks(checks) }))
    if (!checks.some(({ runs }) => runs)) process.exitCode = 1
  })
}

export async function checkModes(
  log: Log,
  loaders: ModeLoaders = modeLoaders,
): Promise<readonly ModeCheck[]> {
  const checks: ModeCheck[] = []
  for (const [mode, load] of Object.entries(loaders)) {
    const elsewhere = missingSystem(mode)
    if (elsewhere) {
      checks.push({ mode, summary: '', runs: false, findings: [elsewhere] })
      continue
    }
    try {
      const definition = await load()
      const findings = await definition.probe({ log })
      const runs = findings.every(({ ok, required }) => ok || !required)
      checks.push({ mode, summary: definition.summary, runs, findings })
    } catch (error) {
      const finding = { what: `${mode} mode`, ok: false, required: true, seen: messageOf(error) }
      checks.push({ mode, summary: '', runs: false, findings: [{ ...finding, fix: '' }] })
    }
  }
  return checks
}

/** A table: a line for each mode, and below it a line for each thing that it needs. */
export function formatChecks(checks: readonly ModeCheck[]): string {
  const lines: string[] = []
  for (const { mode, summary, runs, findings } of checks) {
    lines.push(`${mode.padEnd(12)} ${runs ? 'runs' : 'does not run'}   ${summary}`.trimEnd())
    const width = Math.max(0, ...findings.map(({ what }) => what.length))
    for (const { what, ok, required, seen, fix } of findings) {
      const mark = ok ? 'ok     ' : required ? 'MISSING' : 'without'
      lines.push(`  ${mark}  ${what.padEnd(width)}  ${seen}`.trimEnd())
      if (!ok && fix !== '') lines.push(`           ${' '.repeat(width)}→ ${fix}`)
    }
  }
  const best = ['nftables', 'iptables', 'ipvs', 'userspace', 'winuserspace'].find((name) =>
    checks.some(({ mode, runs }) => mode === name && runs),
  )
  lines.push(
    '',
    best === undefined ? 'No mode runs here.' : `--proxy-mode=${best} is the best here.`,
  )
  return `${lines.join('\n')}\n`
}
