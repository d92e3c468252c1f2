/**
 * Runs programs without descriptors and, later, with some. It prints a line of JSON for each way to
 * run them. The test starts it with a low limit of open files.
 */
import { closeSync, openSync } from 'node:fs'
import { spawn, type ChildProcess } from 'node:child_process'
import koffi from 'koffi'
import { runCommand } from '../../lib/kernel/command.js'
import { runProgram } from '../../lib/kernel/iptables/command.js'
import { startProgramsQuickly } from '../../lib/kernel/posix-spawn.js'
import { NftMonitor } from '../../lib/kernel/nftables/monitor.js'

/** RLIMIT_NOFILE of Linux. */
const openFiles = 7

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
const tryBoth = async (how: string) => {
  for (const [what, run] of Object.entries({ runCommand, runProgram })) {
    const without = await starved(() => outcome(run('true', [])))
    say({ what: `${what}${how}`, starved: without, later: await outcome(run('true', [])) })
  }
}
await tryBoth('')
await startProgramsQuickly()
await tryBoth(' quickly')
// Its streams free descriptors as they close, so the limit itself is lowered.
const setLimit = koffi.load(null).func('int setrlimit(int, void *)')
const limitFiles = (most: bigint): unknown => setLimit(openFiles, BigUint64Array.of(most, 64n))
const running = outcome(runProgram('sh', ['-c', 'exec >&- 2>&-; sleep 0.2']))
limitFiles(3n)
const later = await running
limitFiles(64n)
say({ what: 'a program that ends without descriptors', later })

const end = new AbortController()
await new Promise<void>((resolve) => {
  const monitor = new NftMonitor({
    tables: [],
    mark: 'ours',
    onForeign: () => undefined,
    onMissed: () => undefined,
    start: (): ChildProcess => {
      const child = spawn('true', { stdio: ['ignore', 'pipe', 'ignore'] })
      child.once('exit', () => {
        end.abort()
        resolve()
      })
      return child
    },
    restartMs: 20,
  })
  void starved(async () => {
    void monitor.run(end.signal)
    await new Promise((next) => setTimeout(next, 60))
  })
})
say({ what: 'NftMonitor', later: 'works' })
