import t, { type Test } from 'tap'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { once } from 'node:events'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import type { SavedCounts } from '../../../lib/observe/flows/saved-counts.js'
import * as node from '../../support/flow-node.js'
import { startProxy } from '../../support/live-daemon.js'
import { runCommand } from '../../support/run-command.js'

/** Numbers of userspace mode, which carries connections itself, go on in the next process. */

const { kubeProxy, skip, startServers, visits, numbersOf, until, untilHeard } = node

/** Undefined while nobody answers, as in a take-over. */
const numbers = (service: string) => numbersOf(`default/${service}:http`).catch(() => undefined)

/** Takes a fresh file, and a folder where processes meet. */
function flagsIn(t: Test): { readonly flags: readonly string[]; readonly file: string } {
  const folder = mkdtempSync(join(tmpdir(), 'flows-'))
  t.teardown(() => rmSync(folder, { recursive: true }))
  const file = join(folder, 'flows.json')
  const own = ['--flows-state-file', file, '--takeover-folder', folder]
  return { flags: [...node.flagsOf('userspace'), ...own], file }
}

const savedIn = (file: string) =>
  (JSON.parse(readFileSync(file, 'utf8')) as SavedCounts).counts.reduce(
    (sum, { opened }) => sum + opened,
    0,
  )

async function visit(t: Test, times: number): Promise<void> {
  t.same(new Set(await visits(times, '10.96.0.10')), new Set(['answered']))
}

/** A client sends 5 bytes on each connection, and gets 3. */
async function counts(t: Test, connections: number): Promise<void> {
  const bytesOut = 3 * connections
  const web = await until(
    () => numbers('web'),
    (now) => (now?.bytesOut ?? 0) >= bytesOut,
  )
  t.match(web, { total: connections, bytesIn: 5 * connections, bytesOut })
}

t.test('numbers go on over a restart, and over a kill once they are saved', { skip }, async (t) => {
  await startServers(t)
  const { flags, file } = flagsIn(t)
  const first = await startProxy(t, flags)
  await visit(t, 40)
  // Nobody has asked for the numbers, and no period has ended.
  await first.end('SIGTERM')
  const second = await startProxy(t, flags)
  await counts(t, 40)
  await visit(t, 20)
  await counts(t, 60)
  await until(
    () => Promise.resolve(savedIn(file)),
    (saved) => saved === 60,
  )
  await second.end('SIGKILL')
  const third = await startProxy(t, flags)
  await visit(t, 7)
  await counts(t, 67)
  await third.end('SIGTERM')
  await kubeProxy('cleanup')
})

t.test(
  'the mode after userspace mode does not count its connections again',
  { skip },
  async (t) => {
    await startServers(t)
    const { flags, file } = flagsIn(t)
    const flagsOfOther = [...node.flagsOf('nftables'), '--flows-state-file', file]
    // From now on the kernel counts bytes, also while userspace mode runs.
    const before = await startProxy(t, flagsOfOther)
    await untilHeard()
    await before.end('SIGTERM')
    // Its rules stay, and would serve until userspace mode has removed them.
    await runCommand('nft', ['flush', 'ruleset'])
    const carrying = await startProxy(t, flags)
    await visit(t, 40)
    await counts(t, 40)
    const endpoints = async () =>
      new Set(
        (await node.page()).match(/(?<=_bytes_total\{service="default\/web:.*endpoint=")[^"]*/g),
      )
    const carriedTo = await endpoints()
    await carrying.end('SIGTERM')
    for (const why of ['after userspace mode', 'after a restart']) {
      const next = await startProxy(t, flagsOfOther)
      await untilHeard()
      t.same(await endpoints(), carriedTo, why)
      await counts(t, 40)
      await next.end('SIGTERM')
    }
    await kubeProxy('cleanup')
  },
)

t.test('numbers that could not be saved are saved when they can be', { skip }, async (t) => {
  await startServers(t)
  const { flags, file } = flagsIn(t)
  const folder = dirname(file)
  const blocked = join(folder, 'blocked')
  writeFileSync(blocked, 'a file where a folder must be')
  const saved = join(blocked, 'flows.json')
  const daemon = await startProxy(t, [...flags, '--flows-state-file', saved])
  await visit(t, 5)
  await counts(t, 5)
  const told = /keep the numbers of connections: E[A-Z]+: /g
  await until(
    () => Promise.resolve(daemon.output()),
    (output) => told.test(output),
  )
  rmSync(blocked)
  await until(
    () => Promise.resolve(existsSync(saved) && savedIn(saved)),
    (connections) => connections === 5,
  )
  t.equal(daemon.output().match(told)?.length, 1, 'a reason is told once')
  await daemon.end('SIGTERM')
})

function isRunning(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch {
    return false
  }
}

t.test('in a take-over both processes count, and the second has the sum', { skip }, async (t) => {
  await startServers(t)
  const { flags } = flagsIn(t)
  const first = await startProxy(t, [...flags, '--drain-timeout', '10m'])
  await untilHeard()
  await visits(2, '10.96.0.11')
  await visit(t, 10)
  const kept = [connect(80, '10.96.0.10'), connect(80, '10.96.0.10')]
  for (const socket of kept) await once(socket, 'connect')
  const second = await startProxy(t, [...flags, '--takeover'])
  let made = 10 + kept.length
  await until(
    async () => {
      await visit(t, 1)
      made++
    },
    () => first.output().includes('taken the listeners over'),
  )
  await until(
    () => numbers('web'),
    (now) => now !== undefined,
  )
  await visit(t, 5)
  made += 5
  t.ok(isRunning(first.pid), 'it stays for the connections that it has')
  for (const socket of kept) {
    socket.write('hello')
    t.equal(String(await once(socket, 'data')), 'yes')
    socket.destroy()
  }
  await until(
    () => Promise.resolve(isRunning(first.pid)),
    (is) => !is,
  )
  t.match(second.output(), /took listeners over/)
  await counts(t, made)
  await untilHeard()
  await visits(3, '10.96.0.11')
  const empty = await until(
    () => numbers('empty'),
    (now) => (now?.errors ?? 0) >= 5,
  )
  t.equal(empty?.errors, 5, 'what rules refuse, too')
  await second.end('SIGTERM')
  await kubeProxy('cleanup')
})
