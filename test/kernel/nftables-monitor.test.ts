import { EventEmitter } from 'node:events'
import { PassThrough } from 'node:stream'
import type { ChildProcess } from 'node:child_process'
import t from 'tap'
import { NftMonitor } from '../../lib/kernel/nftables/monitor.js'
import { playTime } from '../support/played-time.js'

const tickMs = 10
const time = playTime()

/** A played program: the test decides what it prints and when it ends. */
class Program extends EventEmitter {
  readonly stdout = new PassThrough()
  isKilled = false

  kill(): void {
    this.isKilled = true
    this.emit('close')
  }

  /** Prints these lines as `nft monitor` prints one transaction. */
  prints(...lines: readonly string[]): void {
    for (const line of [...lines, '# new generation 7 by process 4711 (nft)']) {
      this.stdout.write(`${line}\n`)
    }
  }
}

async function watching(during: (played: Played) => Promise<void>): Promise<void> {
  const programs: Program[] = []
  const told = { foreign: 0 }
  const monitor = new NftMonitor({
    tables: [{ family: 'ip', name: 'kube-proxy' }],
    onForeign: () => told.foreign++,
    start: () => {
      const program = new Program()
      programs.push(program)
      return program as unknown as ChildProcess
    },
    times: { tickMs, restartMs: 20 },
  })
  const end = new AbortController()
  const running = monitor.run(end.signal)
  await during({
    monitor,
    programs,
    told,
    prints: (...lines) => programs.at(-1)?.prints(...lines),
    ticks: async (count) => {
      for (let left = count; left > 0; left--) await time.pass(tickMs)
    },
  })
  end.abort()
  await running
  const last = programs.pop()
  t.ok(last?.isKilled, 'the program does not stay behind')
  t.notOk(
    programs.some(({ isKilled }) => isKilled),
    'who has ended before is left alone',
  )
}

interface Played {
  readonly monitor: NftMonitor
  readonly programs: readonly Program[]
  readonly told: { foreign: number }
  readonly prints: (...lines: readonly string[]) => void
  readonly ticks: (count: number) => Promise<void>
}

const ours = 'add rule ip kube-proxy services counter'
const done = () => Promise.resolve()

void t.test('NF29: a change that none of our transactions explains is foreign', async (t) => {
  await watching(async ({ monitor, told, prints, ticks }) => {
    await monitor.around(done)
    prints(ours, ours)
    await ticks(5)
    t.equal(told.foreign, 0)
    prints(ours)
    await ticks(5)
    t.equal(told.foreign, 1)
    await ticks(5)
    t.equal(told.foreign, 1, 'it is told once')
    await monitor.around(() => Promise.reject(new Error('refused'))).catch(() => undefined)
    prints('delete table ip kube-proxy')
    await ticks(5)
    t.equal(told.foreign, 2, 'a transaction that was refused explains nothing')
  })
})

void t.test('NF29: changes of other tables are ignored', async (t) => {
  await watching(async ({ monitor, told, prints, ticks }) => {
    await monitor.around(done)
    prints(ours)
    await ticks(5)
    prints('add rule ip kube-proxy-other services counter')
    prints('add rule ip6 kube-proxy services counter')
    prints(' ip kube-proxy')
    prints()
    await ticks(5)
    t.equal(told.foreign, 0)
  })
})

void t.test('NF29: changes are not judged while a transaction of ours runs', async (t) => {
  await watching(async ({ monitor, told, prints, ticks }) => {
    let finish = () => {}
    const committing = monitor.around(() => new Promise<void>((resolve) => (finish = resolve)))
    prints(ours)
    await ticks(8)
    t.equal(told.foreign, 0)
    finish()
    await committing
    await ticks(5)
    t.equal(told.foreign, 0, 'that was it')
  })
})

void t.test('NF29: our own events may come late or not at all', async (t) => {
  await watching(async ({ monitor, told, prints, ticks }) => {
    await monitor.around(done)
    await ticks(20)
    prints(ours)
    await ticks(5)
    t.equal(told.foreign, 0, 'late')
    await monitor.around(done)
    await ticks(100)
    prints(ours)
    await ticks(5)
    t.equal(told.foreign, 1, 'by then nobody waits for it any more')
  })
})

void t.test('NF29: our own events are awaited, even if they always come late', async (t) => {
  await watching(async ({ monitor, told, prints, ticks }) => {
    await monitor.around(done)
    for (let round = 0; round < 50; round++) {
      await monitor.around(done)
      prints(ours)
      await ticks(2)
    }
    prints(ours)
    await ticks(5)
    t.equal(told.foreign, 0)
  })
})

void t.test('NF29: a monitor program that ends is started again', async (t) => {
  await watching(async ({ programs, told, prints, ticks }) => {
    programs[0]?.emit('close')
    await ticks(8)
    t.equal(programs.length, 2)
    programs[1]?.emit('error', new Error('spawn nft ENOENT'))
    await ticks(8)
    t.equal(programs.length, 3)
    prints(ours)
    await ticks(5)
    t.equal(told.foreign, 1)
  })
})
