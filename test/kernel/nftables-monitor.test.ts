import { EventEmitter } from 'node:events'
import { PassThrough } from 'node:stream'
import type { ChildProcess } from 'node:child_process'
import t from 'tap'
import type { Transaction } from '../../lib/kernel/nftables/model.js'
import { NftMonitor } from '../../lib/kernel/nftables/monitor.js'
import type { RulesetWriter } from '../../lib/kernel/nftables/nft.js'
import { transactionText } from '../../lib/kernel/nftables/text.js'
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
  const told = { foreign: 0, missed: 0 }
  const monitor = new NftMonitor({
    tables: [{ family: 'ip', name: 'kube-proxy' }],
    mark: 'mark-1',
    onForeign: () => told.foreign++,
    onMissed: () => told.missed++,
    start: () => {
      const program = new Program()
      programs.push(program)
      return program as unknown as ChildProcess
    },
    restartMs: 20,
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
  readonly told: { foreign: number; missed: number }
  readonly prints: (...lines: readonly string[]) => void
  readonly ticks: (count: number) => Promise<void>
}

const changed = 'add rule ip kube-proxy services counter'
const mark = ['add chain ip kube-proxy mark-1', 'delete chain ip kube-proxy mark-1']

void t.test('NF29: a change of our tables without our mark is foreign', async (t) => {
  await watching(async ({ told, prints, ticks }) => {
    prints(changed, changed, ...mark)
    prints(changed, ...mark)
    await ticks(5)
    t.equal(told.foreign, 0)
    prints(changed)
    prints(changed, ...mark)
    await ticks(5)
    t.equal(told.foreign, 1, 'also among our own')
    prints('add chain ip kube-proxy-other mark-1', 'delete table ip kube-proxy')
    await ticks(5)
    t.equal(told.foreign, 2)
  })
})

void t.test('NF29: our transactions carry the mark, after their commands', async (t) => {
  await watching(async ({ monitor }) => {
    const texts: string[] = []
    const commit = (transaction: Transaction) =>
      Promise.resolve(texts.push(transactionText(transaction)))
    const writer = monitor.guarded({ name: 'nft', commit, check: () => Promise.resolve() })
    const table = { family: 'ip', name: 'kube-proxy', comment: '' } as const
    await writer.commit({
      table,
      commands: [{ do: 'flush-chain', chain: { name: 'a', rules: [] } }],
    })
    t.same(texts, [['flush chain ip kube-proxy a', ...mark, ''].join('\n')])
  })
})

void t.test('NF29: changes of other tables are ignored', async (t) => {
  await watching(async ({ told, prints, ticks }) => {
    prints('add rule ip kube-proxy-other services counter')
    prints('add rule ip6 kube-proxy services counter')
    prints(' ip kube-proxy')
    prints()
    await ticks(5)
    t.equal(told.foreign, 0)
  })
})

const noWriter: RulesetWriter = {
  name: 'nft',
  commit: () => Promise.resolve(1),
  check: () => Promise.resolve(),
}
const nothing: Transaction = {
  table: { family: 'ip', name: 'kube-proxy', comment: '' },
  commands: [],
}

void t.test('NF29: a program that listens late makes what we wrote before unknown', async (t) => {
  await watching(async ({ monitor, told, prints, ticks }) => {
    await ticks(3)
    t.equal(told.missed, 0, 'nothing was written yet')
    await monitor.guarded(noWriter).commit(nothing)
    await ticks(4)
    t.equal(told.missed, 1)
    await ticks(6)
    t.equal(told.missed, 1, 'the pauses grow')
    await ticks(1)
    t.equal(told.missed, 2, 'it still does not listen')
    prints(changed, ...mark)
    await ticks(20)
    t.equal(told.missed, 2, 'it listens')
  })
})

void t.test('NF29: a program that printed what we wrote has missed nothing', async (t) => {
  await watching(async ({ monitor, told, prints, ticks }) => {
    await monitor.guarded(noWriter).commit(nothing)
    prints(changed, ...mark)
    await ticks(20)
    t.equal(told.missed, 0)
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
    prints(changed)
    await ticks(5)
    t.equal(told.foreign, 1)
  })
})

void t.test('NF29: what happened while no program listened is told as missed', async (t) => {
  await watching(async ({ programs, told, ticks }) => {
    await ticks(8)
    t.equal(told.missed, 0, 'the first program comes before the first sync')
    programs[0]?.emit('close')
    await ticks(3)
    t.equal(programs.length, 2)
    programs[1]?.emit('close')
    await ticks(3)
    t.equal(programs.length, 3)
    t.equal(told.missed, 0, 'who ends at once has not listened')
    await ticks(8)
    t.equal(told.missed, 1, 'once')
  })
})
