import { once } from 'node:events'
import {
  chmodSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { tmpdir } from 'node:os'
import t from 'tap'
import { ordinaryUser, play, playWithoutRights, powerlessRoot } from '../support/played.js'
import { runCommand } from '../support/run-command.js'
import { withoutPrograms } from '../support/without-programs.js'
import { until } from '../support/until.js'

const skip = process.getuid?.() === 0 ? false : 'network namespaces need root'

// This test has a folder, because other playgrounds run at the same time. Ordinary users write to
// it.
const place = mkdtempSync(join(tmpdir(), 'played-'))
chmodSync(place, 0o1777)
process.env['TMPDIR'] = place
t.teardown(() => rmSync(place, { recursive: true }))

/** The folders of playgrounds, which hold their kubeconfigs. */
function folders(): ReadonlySet<string> {
  return new Set(readdirSync(tmpdir()).filter((name) => name.startsWith('kube-proxy-playground-')))
}

function namespacesOf(pid: number): readonly string[] {
  const names = existsSync('/run/netns') ? readdirSync('/run/netns') : []
  return names.filter((name) => name.startsWith(`kpw-${pid}-`))
}

t.test('the playground leaves nothing behind after one or two Ctrl-C', { skip }, async (t) => {
  for (const times of [1, 2]) {
    const before = folders()
    const played = play(['--mode', 'nftables', '--port', '0'])
    const [, url = ''] = await played.said(/Open (http:\/\/127\.0\.0\.1:\d+)/)
    t.equal((await fetch(url)).status, 200, 'the page is there before the tour has ended')
    await played.said(/answered by/)
    const [, kubeconfig = ''] = await played.said(/--kubeconfig (\S+) get all/)
    t.ok(existsSync(kubeconfig))
    if (times === 1) {
      await played.said(/as it should\.\n[^]*Open http/)
      const lines = played.output().trimEnd().split('\n')
      t.match(lines.at(-1), `Open ${url}`, 'the address is the last line again')
      t.match(lines.at(-2), kubeconfig, 'beside the kubeconfig that lives')
    }
    played.signal('SIGINT')
    // Two signals that come close together are one for a busy process, so more follow.
    const insisting = setInterval(() => times > 1 && played.signal('SIGINT'), 20)
    const code = await played.ended
    clearInterval(insisting)
    t.equal(code, times === 1 ? 0 : 1, 'whoever insists is obeyed at once')
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

t.test(
  'the playground uses the next port if its port is in use, and its closed terminal ends it',
  { skip },
  async (t) => {
    const server = createServer().listen(0, '127.0.0.1')
    await once(server, 'listening')
    t.teardown(() => server.close())
    const address = server.address()
    const taken = typeof address === 'object' && address ? address.port : 0
    const before = folders()
    // In a session of its own, as in a terminal: the signal also reaches the daemon.
    const played = play(['--proxy-mode', 'nftables', '--port', String(taken)], ['setsid'])
    const [, port = ''] = await played.said(/Open http:\/\/127\.0\.0\.1:(\d+)/)
    t.ok(Number(port) > taken && Number(port) <= taken + 20, `${port} instead of ${taken}`)
    await played.said(/answered by/)
    process.kill(-played.pid, 'SIGHUP')
    t.equal(await played.ended, 0, played.output())
    await until('no namespace is left', () => namespacesOf(played.pid).length === 0)
    t.same(
      [...folders()].filter((name) => !before.has(name)),
      [],
      'no folder is left',
    )
    t.notMatch(played.output(), /log of the daemon/)
  },
)

t.test('the playground of an ordinary user runs in a user namespace', { skip }, async (t) => {
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

t.test('the playground without rights runs userspace mode on 127.0.0.0/8', { skip }, async (t) => {
  const once1 = await playWithoutRights(['--once'])
  t.equal(await once1.ended, 0, once1.output())
  t.match(once1.output(), /this system refuses user namespaces:\n {3}unshare: .*No space left/)
  t.match(once1.output(), /Mode nftables cannot run here: it needs rights over a network/)
  t.match(once1.output(), /Playing without any rights, on 127\.0\.0\.0\/8 of this machine/)
  const rows = once1.output().match(/^ {6}web-.*$/gm) ?? []
  t.equal(rows.length, 6, once1.output())
  const names = rows.flatMap((row) => row.trim().split(/ +/))
  const [first, after] = [names.slice(0, 6), names.slice(6)]
  t.equal(new Set(first).size, 2, 'two pods answered')
  t.same(first.slice(2), first.slice(0, -2), 'in turn')
  t.equal(new Set([...first, ...after]).size, 3, 'and later the successor of the one that went')
  t.match(once1.output(), /Everything answered as it should/)

  const asRoot = await playWithoutRights(['--once'], powerlessRoot)
  t.equal(await asRoot.ended, 0, asRoot.output())
  t.match(asRoot.output(), /^Root cannot make network namespaces here: unshare: .*not permitted\n/)
  t.match(asRoot.output(), /Mode nftables cannot run here: it needs network namespaces\.\n/)
  t.notMatch(asRoot.output(), /sudo|NET_ADMIN|need root/, 'it is root')
  t.match(asRoot.output(), /Playing without network namespaces.*\n[^]*Everything answered/)

  const [file, before] = withoutPrograms([])
  const bare = play(['--once'], [file, ...before])
  t.equal(await bare.ended, 0, bare.output())
  t.match(bare.output(), /need the program ip, which is missing: install iproute2/)
  t.match(bare.output(), /Playing without network namespaces.*\n[^]*Everything answered/)

  const kernelMode = await playWithoutRights(['--once', '--mode', 'nftables'])
  t.equal(await kernelMode.ended, 1)
  t.match(kernelMode.output(), /No mode is left to show/)
})

t.test('the playground shows one line of why root has no namespaces', { skip }, async (t) => {
  const said = `no\\033[31m ${'because '.repeat(40)}\\nmore`
  writeFileSync(join(place, 'unshare'), `#!/bin/sh\nprintf '${said}' >&2; exit 1\n`, {
    mode: 0o755,
  })
  const path = `PATH=${place}:${process.env['PATH'] ?? ''}`
  const played = play(['--once', '--mode', 'nftables'], ['env', path])
  t.equal(await played.ended, 1, 'no mode is left')
  const [line = '', next] = played.output().split('\n')
  t.match(line, /^Root cannot make network namespaces here: no\\u001b\[31m because because/)
  t.ok(line.length < 250, `${line.length} characters`)
  t.match(next, /^Without them, userspace mode runs/)
})

/** A program that sees another platform. */
function seeing(platform: string): readonly string[] {
  const file = join(place, `${platform}.mjs`)
  // The library of this platform is loaded before the process sees another one.
  const koffi = `import ${JSON.stringify(import.meta.resolve('koffi'))}`
  const set = `Object.defineProperty(process, 'platform', { value: '${platform}' })`
  writeFileSync(file, `${koffi}\n${set}`)
  return ['env', `NODE_OPTIONS=--import=${file}`]
}

t.test('where no mode can run, the playground serves a simulated cluster', { skip }, async (t) => {
  const asked = play(['--simulated', '--port', '0', '--mode', 'nftables'])
  const mac = play(['--port', '0'], seeing('darwin'))
  const onMac =
    /^The cluster is simulated .*: modes run on Linux and Windows only, and this is darwin/
  for (const [played, why, end] of [
    [asked, /^The cluster is simulated in the browser: --simulated asks for it/, 'SIGHUP'],
    [mac, onMac, 'SIGINT'],
  ] as const) {
    const [, url = ''] = await played.said(/Open (http:\/\/127\.0\.0\.1:\d+)/)
    t.match(played.output(), why, 'the first line says it, and why')
    for (const [path, name] of [
      ['/', 'index.html'],
      ['/site.js', 'site.js'],
      ['/style.css', 'style.css'],
    ]) {
      const answer = await fetch(`${url}${path}`)
      const file = new URL(`../../site/${name}`, import.meta.url)
      t.equal(await answer.text(), readFileSync(file, 'utf8'), `${path} is what the site has`)
    }
    for (const path of ['/events', '/object', '/main.js', '/%2e%2e/package.json'])
      t.equal((await fetch(`${url}${path}`)).status, 404, path)
    const posted = { method: 'POST', headers: { 'content-type': 'application/json' } }
    const body = JSON.stringify({ do: 'clear' })
    t.equal((await fetch(`${url}/command`, { ...posted, body })).status, 405, 'nothing to command')
    played.signal(end)
    t.equal(await played.ended, 0, played.output())
  }
  t.match(asked.output(), /Open \S+\/#mode=nftables to/, 'the link has the mode')
  t.notMatch(mac.output(), /namespaces|127\.0\.0\.0/, 'nothing else was tried')

  const tour = play(['--once'], seeing('darwin'))
  t.equal(await tour.ended, 1)
  t.match(tour.output(), /No mode is left to show: .*darwin\. Without --once a page shows/)
  const both = play(['--once', '--simulated'])
  t.equal(await both.ended, 2)
  t.match(both.output(), /--once: the tour sends real packets/)
  const kernelMode = await playWithoutRights(['--mode', 'nftables', '--port', '0'])
  await kernelMode.said(/Mode nftables cannot run here.*\nThe cluster is simulated.*\nOpen http/)
  kernelMode.signal('SIGINT')
  t.equal(await kernelMode.ended, 0)
})

t.test('a system with 127.0.0.1 only has no addresses for userspace mode', { skip }, async (t) => {
  const one = ['add 127.0.0.1/32', 'del 127.0.0.1/8'].map((what) => `ip address ${what} dev lo`)
  const commands = `ip link set lo up && ${one.join(' && ')} && exec "$@"`
  const alone = play(
    ['--port', '0'],
    [...['unshare', '--net', 'sh', '-c', commands, 'sh'], ...seeing('win32')],
  )
  await alone.said(/Open http:\/\/127/)
  t.match(
    alone.output(),
    /Mode userspace cannot run here: .*: this system has 127\.0\.0\.1 only\.\n/,
  )
  t.match(alone.output(), /The cluster is simulated in the browser: no mode can run here/)
  t.notMatch(alone.output(), /Playing/)
  alone.signal('SIGINT')
  t.equal(await alone.ended, 0)
})

t.test('the playground without rights leaves nothing behind', { skip }, async (t) => {
  for (const signal of ['SIGINT', 'SIGKILL'] as const) {
    const foldersBefore = folders()
    const played = await playWithoutRights(['--port', '0'])
    const [, url = ''] = await played.said(/Open (http:\/\/127\.0\.0\.1:\d+)/)
    t.equal((await fetch(url)).status, 200)
    await played.said(/answered by/)
    const used = await networksOf(played.pid)
    t.equal(used.length, 2, 'the page and the tour have addresses of their own')
    played.signal(signal)
    t.equal(await played.ended, signal === 'SIGINT' ? 0 : null)
    await until('nobody listens there any more', async () => {
      const now = await hostNetworks()
      return !used.some((network) => now.includes(network))
    })
    await until('no daemon is left', async () => {
      const { stdout } = await runCommand('ps', ['-eo', 'args'])
      return !used.some((network) => stdout.includes(`--master http://${network}`))
    })
    const left = [...folders()].filter((name) => !foldersBefore.has(name))
    if (signal === 'SIGINT') t.same(left, [], 'no folder is left')
    // After SIGKILL the playground cannot clean up, so the test does.
    else for (const name of left) rmSync(join(tmpdir(), name), { recursive: true })
  }
})

const listening = async () => (await runCommand('ss', ['-Htulnp'])).stdout

/** The networks `127.x.` of 127.0.0.0/8, except the first, that have a listener. */
const networksIn = (text: string) => [...new Set(text.match(/\b127\.(?!0\.)\d+\./g))]

async function hostNetworks(): Promise<readonly string[]> {
  return networksIn(await listening())
}

/** Those of a playground without rights: other tests play at the same time, in other user namespaces. */
async function networksOf(pid: number): Promise<readonly string[]> {
  const spaceOf = (one: number | string) => readlinkSync(`/proc/${one}/ns/user`)
  const own = spaceOf(pid)
  const isOwn = (line: string) => {
    const listener = /pid=(\d+)/.exec(line)?.[1]
    return listener !== undefined && existsSync(`/proc/${listener}`) && spaceOf(listener) === own
  }
  return networksIn((await listening()).split('\n').filter(isOwn).join('\n'))
}

t.test('the playground answers a wrong argument with the allowed values', { skip }, async (t) => {
  const port = play(['--port', 'many'])
  t.equal(await port.ended, 2)
  t.match(port.output(), /--port: "many" is not a number from 0 to 65535/)
  const mode = play(['--mode', 'carrier-pigeon', '--once'])
  t.equal(await mode.ended, 2)
  t.match(mode.output(), /there are userspace, iptables, ipvs, nftables/)
})
