import { createServer, type Server } from 'node:net'
import { readFile, stat } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { isIptablesError } from './error.js'
import type { CommandOutput, Run, RunOptions } from './command.js'

/** The iptables programs read the same variable. */
const lockFile = () => process.env.XTABLES_LOCKFILE ?? '/run/xtables.lock'
/** Programs before 1.6.0 lock an abstract socket of this name. */
const lockSocket = '\0xtables'
/** An exit code that iptables-restore does not use. */
const notGranted = 75

interface LockedRun {
  readonly file: string
  readonly args: readonly string[]
  readonly options: RunOptions
  readonly waitSeconds: number
}

/**
 * Runs a restore of iptables before 1.6.2. It takes no lock of its own, so it runs under both locks
 * that other programs of its time respect (IT47).
 */
export async function runLocked(run: Run, wanted: LockedRun): Promise<CommandOutput> {
  const { file, args, options, waitSeconds } = wanted
  const socket = await openLockSocket(waitSeconds * 1000)
  if (!socket) return busy
  try {
    const flock = ['-w', String(waitSeconds), '-E', String(notGranted), lockFile()]
    const result = await run('flock', [...flock, file, ...args], options)
    return result.code === notGranted ? busy : result
  } catch (error) {
    // Without util-linux only the socket can be locked.
    if (isIptablesError(error, 'missing')) return await run(file, args, options)
    throw error
  } finally {
    socket.close()
  }
}

const busy: CommandOutput = {
  code: 4,
  stdout: '',
  stderr: 'Another app is currently holding the xtables lock.',
}

async function openLockSocket(waitMs: number): Promise<Server | undefined> {
  for (const began = performance.now(); ;) {
    const server = createServer((client) => client.destroy())
    const isOpen = await new Promise<boolean>((resolve, reject) => {
      server.once('error', (error: NodeJS.ErrnoException) => {
        if (error.code === 'EADDRINUSE') resolve(false)
        else reject(error)
      })
      server.listen(lockSocket, () => resolve(true))
    })
    if (isOpen) return server
    if (performance.now() - began >= waitMs) return undefined
    await sleep(100)
  }
}

/** Who holds the xtables lock, such as `iptables (pid 4711)`; undefined when that cannot be seen. */
export async function lockHolder(): Promise<string | undefined> {
  try {
    const { dev, ino } = await stat(lockFile())
    const device = [(dev >> 8) & 0xfff, (dev & 0xff) | ((dev >> 12) & 0xfff00)]
      .map((part) => part.toString(16).padStart(2, '0'))
      .join(':')
    const locks = await readFile('/proc/locks', 'utf8')
    const held = locks.split('\n').find((line) => line.includes(` ${device}:${ino} `))
    const pid = /FLOCK +\S+ +\S+ +(\d+) /.exec(held ?? '')?.[1]
    // 0 means a process in another PID namespace.
    if (pid === undefined || pid === '0') return undefined
    const name = (await readFile(`/proc/${pid}/comm`, 'utf8')).trim()
    return `${name} (pid ${pid})`
  } catch {
    return undefined
  }
}
