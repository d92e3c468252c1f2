/**
 * Runs programs without descriptors and, later, with some. It prints a line of JSON for each way to
 * run them. The test starts it with a low limit of open files.
 */
import { closeSync, openSync } from 'node:fs'
import { spawn, type ChildProcess } from 'node:child_process'
import { runCommand } from '../../lib/kernel/command.js'
import { runProgram } from '../../lib/kernel/iptables/command.js'
import { NftMonitor } from '../../lib/kernel/nftables/monitor.js'

const say = (line: object) => process.stdout.write(`${JSON.stringify(line)}\n`)

/** Runs `work` while no descriptor is free. */
async function starved<T>(work: () => Promise<T>): Promise<T> {
  const held: number[] = []
  try {
    for (;;) held.push(openSync('/dev/null', 'r'))
  } catch {
    // All descriptors are in use now.
  }
  try {
    return await work()
  } finally {
    for (const descriptor of held) closeSync(descriptor)
  }
}

const outcome = (work: Promise<unknown>) =>
  work.then(
    () => 'works',
    (error: unknown) => String(error),
  )

// Node itself opens some descriptors at the first child, so this one comes before.
await runCommand('true', [])
for (const [what, run] of Object.entries({ runCommand, runProgram })) {
  const without = await starved(() => outcome(run('true', [])))
  say({ what, starved: without, later: await outcome(run('true', [])) })
}

const end = new AbortController()
await new Promise<void>((resolve) => {
  const monitor = new NftMonitor({
    tables: [],
    onForeign: () => undefined,
    start: (): ChildProcess => {
      const child = spawn('true', { stdio: ['ignore', 'pipe', 'ignore'] })
      child.once('exit', () => {
        end.abort()
        resolve()
      })
      return child
    },
    times: { tickMs: 10, restartMs: 20 },
  })
  void starved(async () => {
    void monitor.run(end.signal)
    await new Promise((next) => setTimeout(next, 60))
  })
})
say({ what: 'NftMonitor', starved: 'tried again', later: 'works' })
