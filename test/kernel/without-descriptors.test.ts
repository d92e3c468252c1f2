/** A process without a free descriptor cannot start programs, and reports this as an error. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import t from 'tap'

const script = new URL('./starved.js', import.meta.url).pathname

interface Outcome {
  readonly what: string
  readonly starved?: string
  readonly later: string
}

t.test(
  'a program that cannot start because descriptors ran out fails without a crash',
  async (t) => {
    const child = spawn('prlimit', ['--nofile=64:64', process.execPath, script], {
      env: { PATH: process.env['PATH'] ?? '' },
    })
    const outcomes: Outcome[] = []
    let complaints = ''
    child.stderr.on('data', (chunk) => (complaints += String(chunk)))
    createInterface({ input: child.stdout }).on('line', (line) => {
      outcomes.push(JSON.parse(line) as Outcome)
    })
    const [code] = (await once(child, 'close')) as [number | null]
    t.equal(code, 0, complaints)
    t.same(
      outcomes.map(({ what }) => what),
      [
        'runCommand',
        'runProgram',
        'runCommand quickly',
        'runProgram quickly',
        'a program that ends without descriptors',
        'NftMonitor',
      ],
    )
    for (const { what, starved, later } of outcomes) {
      if (starved !== undefined) {
        t.match(
          starved,
          /Error: run \S+: .*EMFILE.*; no file descriptors are left, raise the limit/,
        )
      }
      t.equal(later, 'works', `${what} works as soon as there are descriptors again`)
    }
  },
)
