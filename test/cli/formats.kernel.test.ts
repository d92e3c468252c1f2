import t from 'tap'
import { execFileSync, spawn } from 'node:child_process'
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { parse } from 'yaml'
import { enterPrivateNetns } from '../support/private-netns.js'
import { kubeProxy, kubeProxyCommand, startDaemon } from '../support/live-daemon.js'
import { runCommand } from '../support/run-command.js'
import { until, untilSeen } from '../support/until.js'

/** Commands about a live node have all formats, and take the name of a Service as target. */

const skip = enterPrivateNetns() ?? false
if (skip === false) {
  execFileSync('ip', ['link', 'set', 'lo', 'up'])
  execFileSync('ip', ['address', 'add', '192.0.2.1/24', 'dev', 'lo'])
  // A trace begins at the first packet of a connection, so it needs a route and no endpoint.
  execFileSync('ip', ['route', 'add', '10.0.0.0/8', 'dev', 'lo'])
}

interface Story {
  readonly to: string
  readonly destination: string
  readonly hops: readonly { readonly owner: string }[]
}

t.test('trace finds a Service by its name, as explain does', { skip }, async (t) => {
  await startDaemon(t, 'nftables')
  const send = ['--send', '--timeout', '60']
  const byName = await kubeProxy('trace', 'web', ...send, '-o', 'yaml')
  t.match(
    byName.stderr,
    /^waiting for a connection to web at 10\.96\.0\.10:80 …\n1 connection of --send: \S.*\n$/,
  )
  t.match(byName.stdout, /^---\n/, 'one document for each connection')
  const story = parse(byName.stdout) as Story
  t.match(story, { to: '10.96.0.10:80', destination: /^10\.244\.\d+\.\d+:8080$/ })
  t.ok(story.hops.some(({ owner }) => owner === 'default/web:http'))

  const dns = ['trace', 'kube-system/kube-dns:dns', ...send]
  const { stdout } = await kubeProxy(...dns, '--json')
  t.match(JSON.parse(stdout), { to: '10.96.0.53:53' }, 'the protocol is that of the Service port')
  t.equal(stdout.split('\n').length, 2, 'one line for each connection')
  const text = await kubeProxy('trace', '10.96.0.10:80', ...send, '-o', 'wide')
  t.match(text.stdout, /^A connection from .* to 10\.96\.0\.10:80, of this node itself:/)

  const wrong = await kubeProxy('trace', 'wbe')
  t.match(wrong, {
    code: 2,
    stderr: /^kube-proxy: there is no Service port "wbe"; there are: .*\n$/,
  })
  const port = await kubeProxy('trace', '10.96.0.10:0')
  t.match(port, { code: 2, stderr: /"10\.96\.0\.10:0" has no port from 1 to 65535; give IP:PORT/ })

  const nowhere = await kubeProxy('trace', '203.0.113.1:80', ...send)
  t.match(nowhere, {
    code: 1,
    stderr: /send to 203\.0\.113\.1:80: connect ENETUNREACH .*; see `ip route get 203/,
  })
  const datagram = await kubeProxy('trace', '203.0.113.1:80', '--protocol', 'UDP', ...send)
  t.match(datagram, { code: 1, stderr: /send to 203\.0\.113\.1:80: connect ENETUNREACH/ })
  const sctp = await kubeProxy('trace', '10.96.0.10:80', '--protocol', 'SCTP', ...send)
  t.match(sctp, { code: 2, stderr: /--send: it makes only TCP and UDP connections/ })

  const [json, yaml] = await Promise.all([
    kubeProxy('diff', '-o', 'json'),
    kubeProxy('diff', '-o', 'yaml'),
  ])
  t.match(JSON.parse(json.stdout), { mode: 'nftables', families: [{ family: 'IPv4' }] })
  t.same(parse(yaml.stdout), JSON.parse(json.stdout))

  const top = await kubeProxy('top', '-o', 'json')
  const { services } = JSON.parse(top.stdout) as { services: { service: string }[] }
  t.ok(services.some(({ service }) => service === 'default/web:http'))
  t.match(parse((await kubeProxy('top', '-o', 'yaml')).stdout), { mode: 'nftables' })
  t.match((await kubeProxy('top', '-o', 'wide')).stdout, /^SERVICE {10,}OPEN/m)
})

t.test(
  'commands tell what stops a connection although the rules are right',
  { skip },
  async (t) => {
    writeFileSync('/proc/sys/net/ipv4/ip_forward', '0')
    const lo = (verb: string) =>
      execFileSync('ip', ['address', verb, '10.244.1.11/30', 'dev', 'lo'], { stdio: 'ignore' })
    lo('add')
    t.teardown(() => lo('del'))
    const daemon = await startDaemon(t, 'nftables')
    const pod = await kubeProxy('explain', 'web')
    const says = /^!! But net\.ipv4\.ip_forward is 0, so this node passes no packet of others on/m
    t.match(pod.stdout, says)
    t.match(pod.stdout, /^Rules of other programs are not looked at; `kube-proxy trace` shows/m)
    const data = await kubeProxy('explain', 'web', '--json')
    t.match(JSON.parse(data.stdout), { obstacles: [/ip_forward is 0/] })
    const node = await kubeProxy('explain', 'web', '--from', 'node')
    t.notMatch(node.stdout, says, 'packets of the node itself need no forwarding')
    const carried = await kubeProxy('explain', 'web', '--mode', 'userspace')
    t.notMatch(carried.stdout, says, 'the proxy is a part of the node')

    // One endpoint is an address of this node now, where nothing listens.
    const sent = () => kubeProxy('trace', 'web', '--send').then(({ stderr }) => stderr)
    const refused =
      /^1 connection of --send: refused \(ECONNREFUSED\); if the way ends at an endpoint/m
    await untilSeen('an endpoint where nothing listens', sent, refused)

    // The proxy may still remove what other modes have left when it starts.
    const leaveRules = async () => {
      await runCommand('iptables-nft', ['-t', 'nat', '-N', 'KUBE-SERVICES'])
      const { code, stderr } = await kubeProxy('diff')
      return `${code} ${stderr}`
    }
    const others =
      /^0 the kernel also has IPv4 rules of iptables or ipvs mode \(chain nat KUBE-SERV/
    await untilSeen('rules of another mode', leaveRules, others)

    const client = createSocket('udp4')
    client.send('query', 53, '10.96.0.53', () => client.close())
    const open = ['trace', 'kube-system/kube-dns:dns', '--timeout', '100ms']
    const waited = () => kubeProxy(...open).then(({ stderr }) => stderr)
    const old = /Only new ones are followed: the connection table has \d+ already, such as that of /
    await untilSeen('a connection from before', waited, old)

    const log = () => Promise.resolve(daemon.output())
    await untilSeen('a warning in the log', log, /net\.ipv4\.ip_forward is 0, so this node passes/)
    writeFileSync('/proc/sys/net/ipv4/ip_forward', '1')
    await untilSeen('the end of it in the log', log, /passes IPv4 packets of others on again/)
    t.equal(daemon.output().match(/ip_forward is 0/g)?.length, 1)
  },
)

t.test('trace shows a connection that no rule of this node meets', { skip }, async (t) => {
  await startDaemon(t, 'userspace', '--userspace-portals', 'addresses')
  const { stdout, stderr } = await kubeProxy('trace', 'web', '--send', '--timeout', '60')
  t.match(stdout, /No rule matched it\.\n\nSo it was sent to 10\.96\.0\.10:80\.\n/, stderr)
})

t.test('Ctrl-C ends a trace that waits, without a failure', { skip }, async (t) => {
  // A terminal sends the signal to the command and to the programs that it runs.
  const args = [...kubeProxyCommand.slice(1), 'trace', '10.96.0.99:80']
  const child = spawn(kubeProxyCommand[0], args, { detached: true })
  t.teardown(() => child.kill('SIGKILL'))
  let said = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      said += text
      if (said.endsWith(' …\n')) process.kill(-(child.pid ?? NaN), 'SIGINT')
    })
  }
  t.same(await once(child, 'close'), [0, null])
  t.match(said, /^chains are shown without .*\nwaiting for a connection to 10\.96\.0\.99:80 …\n$/)
})

t.test('cleanup tells programs which modes it has cleaned', { skip }, async (t) => {
  const { code, stdout } = await kubeProxy('cleanup', '-o', 'json')
  const modes = JSON.parse(stdout) as { mode: string; isClean: boolean; reason: string }[]
  t.same(modes.map(({ mode }) => mode).sort(), [
    'ebpf',
    'iptables',
    'ipvs',
    'nftables',
    'userspace',
  ])
  t.equal(
    modes.every(({ isClean }) => isClean),
    code === 0,
  )
  t.ok(modes.every(({ isClean, reason }) => isClean === (reason === '')))
  t.equal((await kubeProxy('cleanup')).stdout, '', 'people read the log')
})

t.test('trace prints a connection before the next one comes', { skip }, async (t) => {
  await startDaemon(t, 'nftables')
  const [file, ...words] = kubeProxyCommand
  const flags = ['--count', '2', '--timeout', '600']
  const trace = spawn(file, [...words, 'trace', 'kube-system/kube-dns:dns', ...flags])
  t.teardown(() => trace.kill())
  const exited = once(trace, 'exit')
  const output = { out: '', err: '' }
  trace.stdout.on('data', (text) => (output.out += String(text)))
  trace.stderr.on('data', (text) => (output.err += String(text)))
  await untilSeen('the start', () => output.err, /waiting for a connection/)
  for (const total of [1, 2]) {
    // A datagram is never sent again, so there is no other connection.
    const client = createSocket('udp4')
    client.send('query', 53, '10.96.0.53', () => client.close())
    const seen = () => output.out.match(/^So it was sent/gm)?.length ?? 0
    await until(`connection ${total}`, () => seen() === total)
  }
  t.same(await exited, [0, null])
})
