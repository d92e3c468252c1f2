/** The daemon with few descriptors, and with clients that take many connections. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { connect, createServer, type Socket } from 'node:net'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { rawService, rawSlice } from '../state/objects.js'
import { enterPrivateNetns } from '../support/private-netns.js'
import { program } from '../support/program.js'
import { until } from '../support/until.js'
import { execSync } from '../support/run-sync.js'

const skip = enterPrivateNetns() ?? false
if (skip === false) execSync('ip', ['link', 'set', 'lo', 'up'])
const health = { host: '127.0.0.1', port: 10256 }

const clusterIp = (number: number) => `10.96.${1 + (number >> 7)}.${1 + (number & 127)}`

/** Writes Services with an endpoint each into one file. */
function writeServices(folder: string, file: string, numbers: readonly number[]): void {
  const items = numbers.flatMap((number) => {
    const [name, ip] = [`s${number}`, clusterIp(number)]
    return [
      rawService({ name, spec: { clusterIP: ip, clusterIPs: [ip] } }),
      rawSlice({ name: `${name}-1`, service: name }),
    ]
  })
  writeFileSync(join(folder, file), JSON.stringify({ apiVersion: 'v1', kind: 'List', items }))
}

function startDaemon(t: Test, limit: number, ...args: readonly string[]) {
  const command = ['--logging-format=json', '--hostname-override=n1', ...args]
  const child = spawn(
    'prlimit',
    [`--nofile=${limit}:${limit}`, process.execPath, program, ...command],
    {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { PATH: process.env['PATH'] ?? '' },
    },
  )
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => (output += text))
  }
  t.teardown(async () => {
    if (child.exitCode !== null) return
    child.kill('SIGKILL')
    await once(child, 'exit')
  })
  return { child, output: () => output }
}

const answers = (path: string) => async () => {
  const url = `http://${health.host}:${health.port}${path}`
  return (await fetch(url).catch(() => undefined))?.ok === true
}

const rules = () => execSync('iptables-save', ['-t', 'nat'])

t.test('1,124 idle connections to the health port do not delay Services', { skip }, async (t) => {
  const folder = t.testdir({})
  writeServices(folder, 'first.yaml', [1])
  const daemon = startDaemon(t, 1024, '--proxy-mode=iptables', `--manifests=${folder}`)
  await until('readiness', answers('/readyz'))
  const crowd: Socket[] = []
  for (let count = 0; count < 1_124; count++) {
    const socket = connect(health)
    socket.on('error', () => undefined)
    crowd.push(socket)
    await Promise.race([once(socket, 'connect'), once(socket, 'close')])
  }
  t.teardown(() => crowd.forEach((socket) => socket.destroy()))
  t.ok(await answers('/livez')(), 'the kubelet is answered')
  writeServices(folder, 'second.yaml', [2])
  await until('the rules of a new Service', () => rules().includes(clusterIp(2)))
  t.ok(await answers('/healthz')())
  t.equal(daemon.child.exitCode, null, 'it lives')
  const held = execSync('ls', [`/proc/${daemon.child.pid}/fd`])
  t.ok(held.split('\n').length < 200, `${held.split('\n').length} descriptors are open`)
})

t.test(
  'with 256 descriptors for 400 Services those that fit work, and one message reports the rest',
  { skip },
  async (t) => {
    execSync('ip', ['address', 'add', '10.244.0.1/32', 'dev', 'lo'])
    execSync('ip', ['route', 'add', 'default', 'dev', 'lo'])
    const endpoint = createServer((socket) => socket.end('served')).listen(8080, '10.244.0.1')
    await once(endpoint, 'listening')
    t.teardown(() => void endpoint.close())
    const folder = t.testdir({})
    const numbers = Array.from({ length: 400 }, (_, index) => index)
    writeServices(folder, 'all.yaml', numbers)
    const flags = ['--proxy-mode=userspace', '--takeover-folder=', `--manifests=${folder}`]
    const daemon = startDaemon(t, 256, ...flags, '--iptables-sync-period=1s')
    await until('the message', () => daemon.output().includes('not every service port fits'))
    await until('the first sync', answers('/livez'))
    const served = new Set<number>()
    // On a busy machine those that work may be late, so all are asked again.
    await until('20 that are served', async () => {
      for (let first = 0; first < numbers.length && served.size < 20; first += 20) {
        const some = numbers.slice(first, first + 20)
        const answered = await Promise.all(some.map(isServed))
        for (const [index, is] of answered.entries()) if (is) served.add(first + index)
      }
      return served.size >= 20
    })
    const said = daemon
      .output()
      .split('\n')
      .filter((line) => line.includes('not every service'))
    t.equal(said.length, 1)
    t.match(JSON.parse(said[0] ?? ''), { level: 'error', missing: Number, open: Number })
    t.match(said[0], /raise the limit of open files/)
    t.equal(daemon.child.exitCode, null, 'it lives')
    t.notMatch(daemon.output(), /EMFILE/, 'nothing else runs short')
  },
)

for (const dataPath of ['net', 'splice']) {
  t.test(
    `${dataPath}: crowds at every door at once never take the last descriptor`,
    { skip },
    async (t) => {
      const folder = t.testdir({})
      writeServices(folder, 'all.yaml', [500, 501])
      const nodePorts = {
        type: 'NodePort',
        ports: [{ name: 'http', protocol: 'TCP', port: 80, targetPort: 8080, nodePort: 30_500 }],
      }
      const name = 'doors'
      const ip = clusterIp(502)
      const items = [
        rawService({ name, spec: { clusterIP: ip, clusterIPs: [ip], ...nodePorts } }),
        rawSlice({ name: `${name}-1`, service: name }),
      ]
      writeFileSync(
        join(folder, 'doors.yaml'),
        JSON.stringify({ apiVersion: 'v1', kind: 'List', items }),
      )
      const limit = 256
      const flags = ['--proxy-mode=userspace', '--takeover-folder=', `--manifests=${folder}`]
      const daemon = startDaemon(t, limit, ...flags, `--userspace-datapath=${dataPath}`)
      await until('readiness', answers('/readyz'))
      const doors = [
        { host: clusterIp(500), port: 80 },
        { host: clusterIp(501), port: 80 },
        { host: ip, port: 80 },
        { host: '127.0.0.1', port: 30_500 },
        { host: '10.244.0.1', port: 30_500 },
        health,
        { ...health, port: 10249 },
      ]
      const crowd: Socket[] = []
      t.teardown(() => crowd.forEach((socket) => socket.destroy()))
      let most = 0
      for (let round = 0; round < 30; round++) {
        for (const door of doors) {
          for (let count = 0; count < 5; count++) {
            crowd.push(connect(door).on('error', () => undefined))
          }
        }
        await delay(20)
        const held = execSync('ls', [`/proc/${daemon.child.pid}/fd`])
        most = Math.max(most, held.split('\n').length - 1)
      }
      t.ok(most < limit - 20, `${most} descriptors of ${limit} at most`)
      writeServices(folder, 'late.yaml', [503])
      await until('the rules of a new Service', () => rules().includes(clusterIp(503)))
      t.ok(await answers('/livez')(), 'the kubelet is answered')
      const ticks = () => cpuSeconds(daemon.child.pid ?? 0)
      const [before, began] = [ticks(), performance.now()]
      await delay(2000)
      const share = (1000 * (ticks() - before)) / (performance.now() - began)
      t.ok(share < 0.5, `${100 * share} % of a processor while clients wait`)
      t.equal(daemon.child.exitCode, null, 'it lives')
    },
  )
}

function cpuSeconds(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ') ?? []
  return (Number(fields[11]) + Number(fields[12])) / 100
}

/** Whether the Service answers with its endpoint's text within two seconds. */
async function isServed(number: number): Promise<boolean> {
  const socket = connect({ host: clusterIp(number), port: 80 })
  let heard = ''
  socket.on('data', (chunk) => (heard += String(chunk)))
  socket.on('error', () => undefined)
  const ended = new Promise((resolve) => socket.once('close', resolve))
  await Promise.race([ended, delay(2_000)])
  socket.destroy()
  return heard === 'served'
}
