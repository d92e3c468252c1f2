import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync } from 'node:fs'
import { createServer } from 'node:net'
import { fileURLToPath } from 'node:url'
import { tmpdir } from 'node:os'
import t from 'tap'
import { runCommand } from '../../lib/kernel/command.js'

const skip = process.getuid?.() === 0 ? false : 'network namespaces need root'
const command = fileURLToPath(new URL('../../lib/cli/main.js', import.meta.url))
/** Nobody in particular: an ordinary user without any right. */
const ordinaryUser = ['--reuid', '12345', '--regid', '12345', '--clear-groups']

interface Played {
  readonly pid: number
  readonly output: () => string
  readonly ended: Promise<number | null>
  readonly signal: (name: NodeJS.Signals) => void
  readonly said: (text: RegExp) => Promise<RegExpExecArray>
}

function play(args: readonly string[], wrapper: readonly string[] = []): Played {
  const [file = process.execPath, ...rest] = [
    ...wrapper,
    process.execPath,
    command,
    'playground',
    ...args,
  ]
  const child = spawn(file, rest, { stdio: ['ignore', 'pipe', 'pipe'] })
  const chunks: string[] = []
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => chunks.push(text))
  }
  const output = () => chunks.join('')
  const ended = once(child, 'exit').then(([code]) => code as number | null)
  const said = async (text: RegExp) => {
    for (let tries = 0; tries < 1200; tries++) {
      const match = text.exec(output())
      if (match) return match
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
    throw new Error(`never said ${text.source}:\n${output()}`)
  }
  return {
    pid: child.pid ?? 0,
    output,
    ended,
    signal: (name) => void child.kill(name),
    said,
  }
}

/** Folders of playgrounds and their kubeconfigs. */
function folders(): ReadonlySet<string> {
  return new Set(readdirSync(tmpdir()).filter((name) => name.startsWith('kube-proxy-playground-')))
}

function namespacesOf(pid: number): readonly string[] {
  const names = existsSync('/run/netns') ? readdirSync('/run/netns') : []
  return names.filter((name) => name.startsWith(`kpw-${pid}-`))
}

async function until(what: string, condition: () => boolean | Promise<boolean>): Promise<void> {
  for (let tries = 0; tries < 400; tries++) {
    if (await condition()) return
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  throw new Error(`waited in vain: ${what}`)
}

t.test('Ctrl-C leaves nothing behind, and neither does a second one', { skip }, async (t) => {
  for (const times of [1, 2]) {
    const before = folders()
    const played = play(['--mode', 'nftables', '--port', '0'])
    const [, url = ''] = await played.said(/Open (http:\/\/127\.0\.0\.1:\d+)/)
    t.equal((await fetch(url)).status, 200, 'the page is there before the tour has ended')
    await played.said(/answered by/)
    const [, kubeconfig = ''] = await played.said(/--kubeconfig (\S+) get all/)
    t.ok(existsSync(kubeconfig))
    for (let count = 0; count < times; count++) {
      played.signal('SIGINT')
      await new Promise((resolve) => setTimeout(resolve, 20))
    }
    t.equal(await played.ended, times === 1 ? 0 : 1, 'whoever insists is obeyed at once')
    await until('no namespace is left', () => namespacesOf(played.pid).length === 0)
    t.same(
      [...folders()].filter((name) => !before.has(name)),
      [],
      'no folder is left',
    )
    const { stdout } = await runCommand('ps', ['-eo', 'args'])
    t.notMatch(stdout, kubeconfig.replace('/kubeconfig', ''), 'and no process')
  }
})

t.test('a port that is taken makes way for the next one', { skip }, async (t) => {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  const taken = typeof address === 'object' && address ? address.port : 0
  const played = play(['--mode', 'nftables', '--port', String(taken)])
  const [, port = ''] = await played.said(/Open http:\/\/127\.0\.0\.1:(\d+)/)
  t.ok(Number(port) > taken && Number(port) <= taken + 20, `${port} instead of ${taken}`)
  played.signal('SIGINT')
  t.equal(await played.ended, 0)
  server.close()
})

t.test('an ordinary user plays inside a user namespace', { skip }, async (t) => {
  const trial = await runCommand('setpriv', [
    ...ordinaryUser,
    'unshare',
    '--user',
    '--map-root-user',
    '--mount',
    'true',
  ]).catch(() => undefined)
  if (trial?.code !== 0) {
    t.comment('not tried: this system refuses user namespaces, or has no setpriv')
    const refused = play(['--once', '--mode', 'nftables'], ['setpriv', ...ordinaryUser])
    t.equal(await refused.ended, 1)
    t.match(refused.output(), /refuses user namespaces|not found/)
    return
  }
  const wrapper = ['setpriv', ...ordinaryUser, 'env', `HOME=${tmpdir()}`]
  const once1 = play(['--once', '--mode', 'nftables'], wrapper)
  t.equal(await once1.ended, 0, once1.output())
  t.match(once1.output(), /Playing without root, in a user namespace/)
  t.match(once1.output(), /Everything answered as it should/)

  const before = folders()
  const played = play(['--mode', 'userspace', '--port', '0'], wrapper)
  const [, url = ''] = await played.said(/Open (http:\/\/127\.0\.0\.1:\d+)/)
  t.match(await (await fetch(url)).text(), /kube-proxy playground/, 'the page is on this host')
  const [, kubeconfig = ''] = await played.said(/--kubeconfig (\S+) get all/)
  t.ok(existsSync(kubeconfig), 'and the kubeconfig where anybody of this user finds it')
  played.signal('SIGINT')
  t.equal(await played.ended, 0, played.output())
  await until('no folder is left', () => [...folders()].every((name) => before.has(name)))
})

t.test('who asks for nonsense is told what there is', { skip }, async (t) => {
  const port = play(['--port', 'many'])
  t.equal(await port.ended, 2)
  t.match(port.output(), /--port: "many" is no port/)
  const mode = play(['--mode', 'carrier-pigeon', '--once'])
  t.equal(await mode.ended, 2)
  t.match(mode.output(), /there are userspace, iptables, ipvs, nftables/)
})
