/**
 * A health server in a process that has no descriptors for a while. It prints a line of JSON when
 * it listens, when no descriptor is left, and when there are descriptors again.
 */
import { closeSync, openSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'
import { pause } from '../../lib/async.js'
import { runHttpServer, text } from '../../lib/observe/http.js'

const starvedMs = 1_500
const say = (line: object) => process.stdout.write(`${JSON.stringify(line)}\n`)

const port = await new Promise<number>((listening, failed) => {
  const options = {
    ...{ host: '127.0.0.1', port: 0, handler: () => text('ok'), failHard: true, retryMs: 100 },
    ...{ listening, sleep: pause, failed: (error: string) => say({ error }) },
  }
  runHttpServer(options, new AbortController().signal).catch(failed)
})
say({ port })
// The parent writes when its clients are ready to connect.
await new Promise((resolve) => process.stdin.once('data', resolve))
const held: number[] = []
try {
  for (;;) held.push(openSync('/dev/null', 'r'))
} catch {
  say({ isStarved: true })
}
const [before, began] = [process.cpuUsage(), performance.now()]
await delay(starvedMs)
const { user, system } = process.cpuUsage(before)
const busyShare = (user + system) / 1000 / (performance.now() - began)
for (const descriptor of held) closeSync(descriptor)
say({ busyShare })
