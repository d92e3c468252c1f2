/** Documented commands about a live node do what they say beside a daemon. */
import t from 'tap'
import { execFileSync } from 'node:child_process'
import { connect } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { ourCommands } from '../support/documents.js'
import { kubeProxyCommand, startDaemon } from '../support/live-daemon.js'
import { enterPrivateNetns } from '../support/private-netns.js'
import { runUntilPrinted } from '../support/run-until-printed.js'

const skip = enterPrivateNetns() ?? false
if (skip === false) {
  execFileSync('ip', ['link', 'set', 'lo', 'up'])
  execFileSync('ip', ['address', 'add', '192.0.2.1/24', 'dev', 'lo'])
  // A trace begins at the first packet of a connection, so it needs a route and no endpoint.
  execFileSync('ip', ['route', 'add', '10.0.0.0/8', 'dev', 'lo'])
}

/** Words that the reader replaces, with a value that fits. */
const filledIn = new Map([
  ['NAME', 'web'],
  ['NAMESPACE/NAME', 'default/web'],
  ['127.0.0.1:PORT', '127.0.0.1:80'],
])
const subcommands = ['explain', 'diff', 'trace', 'flows', 'top', 'check', 'completion']
const needsTarget = ['explain', 'trace', 'completion']

/** All of them, without those that only mention a command and those that ask no node. */
const live = new Set(
  ourCommands
    .filter(({ argv: [name = ''] }) => subcommands.includes(name))
    .filter(({ argv }) => argv.length > 1 || !needsTarget.includes(argv[0] ?? ''))
    .filter(({ argv }) => !argv.includes('--manifests'))
    .map(({ argv }) => argv.map((word) => filledIn.get(word) ?? word).join(' ')),
)

/** Connects again and again, so that a trace sees a connection. */
async function visit(stop: AbortSignal): Promise<void> {
  while (!stop.aborted) {
    const socket = connect(80, '10.96.0.10').on('error', () => undefined)
    await delay(200)
    socket.destroy()
  }
}

t.test('documented commands about a live node', { skip }, async (t) => {
  t.ok(live.size >= 10, `${live.size} commands`)
  await startDaemon(t, 'nftables', '--flows', '--flows-state-file=')
  const stop = new AbortController()
  const visiting = visit(stop.signal)
  for (const line of live) {
    const isEndless = line.includes('--follow')
    const argv = [...kubeProxyCommand, ...line.split(' ')]
    const { code, stdout, stderr } = await runUntilPrinted(argv, isEndless)
    t.equal(code, 0, `${line}: ${stderr}`)
    // No connection has this verdict.
    if (!line.includes('-o json')) t.not(stdout, '', line)
  }
  stop.abort()
  await visiting
})
