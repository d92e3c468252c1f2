/** Iptables mode reads by netlink, in a network namespace of this process. */
import { connect, createServer } from 'node:net'
import { spawn, type ChildProcessWithoutNullStreams } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { createNetns, programSkip } from '../support/netns.js'
import { enterPrivateNetns } from '../support/private-netns.js'
import { openGeneration } from '../../lib/modes/foreign-commits.js'
import { iptablesMode } from '../../lib/modes/iptables/index.js'
import { openFamilies } from '../../lib/modes/iptables/open.js'
import { iptablesPlanner } from '../../lib/modes/iptables/plan.js'
import { iptablesSettings } from '../../lib/modes/iptables/settings.js'
import { Sysctls } from '../../lib/kernel/sysctl.js'
import { openPacketAccounts } from '../../lib/kernel/nfacct.js'
import { runProgram } from '../../lib/kernel/iptables/command.js'
import { configWith } from '../../lib/config/load.js'
import { service, states } from '../support/states.js'
import type { Backend, Run } from '../../lib/kernel/iptables.js'
import type { FamilyPlan, Mode, ModeContext } from '../../lib/modes/mode.js'
import type { States } from '../support/states.js'
import { until, untilTrue } from '../support/until.js'
import { execSync } from '../support/run-sync.js'

const skip = enterPrivateNetns() ?? (programSkip('iptables-legacy') || programSkip('conntrack'))

const sysctl = (name: string, value: string) => writeFileSync(`/proc/sys/${name}`, value)

/** The mode on one backend in this namespace. */
class Node {
  readonly counted = new Map<string, number>()
  readonly resyncs: string[] = []
  readonly programs: string[] = []
  readonly #backend: Backend

  constructor(backend: Backend) {
    this.#backend = backend
  }

  readonly #run: Run = (file, args, options) => {
    this.programs.push(file)
    return runProgram(file, args, options)
  }

  get context(): ModeContext {
    const silent = () => undefined
    return {
      log: { debug: silent, info: silent, warn: silent, error: silent },
      meter: {
        count: (name, _, by = 1) => void this.counted.set(name, (this.counted.get(name) ?? 0) + by),
        gauge: silent,
        observe: silent,
        forget: silent,
      },
      resync: (reason) => void this.resyncs.push(reason),
    }
  }

  get definition() {
    const sysctls = new Sysctls('/nonexistent')
    return iptablesMode({ backend: this.#backend, run: this.#run, sysctls })
  }

  create(syncPeriodMs = 30_000): Promise<Mode> {
    const config = configWith({ 'iptables.syncPeriod': syncPeriodMs })
    return this.definition.create(config, ['IPv4'], this.context)
  }
}

async function apply(mode: Mode, cluster: States): Promise<FamilyPlan> {
  const plan = mode.plan(cluster.take())
  await mode.apply(plan)
  return plan
}

/** Connects, sends a text and waits for its echo. */
async function echo(host: string, port: number): Promise<string> {
  const socket = connect({ host, port }).setEncoding('utf8')
  socket.end('hello')
  const [answer] = (await once(socket, 'data')) as [string]
  socket.destroy()
  return answer
}

t.test('iptables mode counts and watches through netlink', { skip: skip || false }, async (t) => {
  execSync('ip', ['link', 'set', 'lo', 'up'])
  for (const ip of ['10.180.0.1', '192.0.2.1']) {
    execSync('ip', ['address', 'add', `${ip}/32`, 'dev', 'lo'])
  }
  sysctl('net/ipv4/conf/all/route_localnet', '1')
  sysctl('net/ipv4/ip_forward', '1')

  for (const backend of ['nft', 'legacy'] as const) {
    const onNode = (name: string, body: (t: Test, node: Node) => Promise<void>) =>
      t.test(`${name} (${backend})`, async (t) => {
        const node = new Node(backend)
        try {
          await body(t, node)
        } finally {
          await node.definition.cleanup(node.context)
        }
      })

    await onNode('IT25: connections to node ports on 127.0.0.1 are counted', async (t, node) => {
      const server = createServer((socket) => socket.pipe(socket)).listen(8080, '10.180.0.1')
      t.teardown(() => server.close())
      const cluster = states().put(service({ nodePort: 30080, endpoints: ['10.180.0.1'] }))
      const metric = 'iptables_localhost_nodeports_accepted_packets_total'
      const mode = await node.create()
      await apply(mode, cluster)
      const stop = new AbortController()
      const running = mode.run(stop.signal)
      t.equal(await echo('127.0.0.1', 30080), 'hello')
      t.equal(await echo('127.0.0.1', 30080), 'hello')
      t.equal(await echo('192.0.2.1', 30080), 'hello', 'which is not counted')
      stop.abort()
      await running
      t.equal(node.counted.get(metric), 0, 'read at the start of a run')
      await mode.close()

      const next = await node.create()
      const again = new AbortController()
      const runningAgain = next.run(again.signal)
      t.equal(node.counted.get(metric), 2, 'the kernel’s count outlives a restart')
      again.abort()
      await runningAgain

      cluster.put(service({ nodePort: 30081, endpoints: ['10.180.0.1'] }))
      await apply(next, cluster)
      cluster.put(service({ nodePort: 30082, endpoints: ['10.180.0.1'] }))
      await apply(next, cluster)
      cluster.put(service({ nodePort: 30083, endpoints: ['10.180.0.1'] }))
      await apply(next, cluster)
      t.equal(await echo('127.0.0.1', 30083), 'hello')
      await next.close()
      const accounts = openPacketAccounts()
      t.equal(accounts.packets('localhost_nps_accepted_pkts'), 3n, 'also after a partial sync')
      await node.definition.cleanup(node.context)
      t.equal(accounts.packets('localhost_nps_accepted_pkts'), undefined, 'cleaned up')
      accounts.close()
    })

    await onNode('IT10: INVALID packets that are dropped are counted', async (t, node) => {
      const ends = ['client', 'server'].map((label) => createNetns(`iptables-${label}`))
      t.teardown(() => {
        execSync('ip', ['link', 'delete', 'v0'])
        execSync('ip', ['link', 'delete', 'v1'])
        for (const end of ends) end.remove()
      })
      for (const [index, end] of ends.entries()) {
        const net = `10.99.${index}`
        execSync('ip', [
          'link',
          'add',
          `v${index}`,
          'type',
          'veth',
          'peer',
          'e0',
          'netns',
          end.name,
        ])
        execSync('ip', ['address', 'add', `${net}.1/24`, 'dev', `v${index}`])
        execSync('ip', ['link', 'set', `v${index}`, 'up'])
        end.exec('ip', 'address', 'add', `${net}.2/24`, 'dev', 'e0')
        end.exec('ip', 'link', 'set', 'e0', 'up')
        end.exec('ip', 'route', 'add', 'default', 'via', `${net}.1`)
      }
      const mode = await node.create()
      await apply(mode, states())
      const program = (index: number, source: string) =>
        spawn('ip', ['netns', 'exec', ends[index]?.name ?? '', process.execPath, '-e', source])
      const server = program(1, echoServer)
      await line(server)
      const client = program(0, talkingClient)
      client.stdin.write('one')
      t.equal(await line(client), 'one', 'a connection through this node')

      const accounts = openPacketAccounts()
      const count = () => Number(accounts.packets('ct_state_invalid_dropped_pkts'))
      t.equal(count(), 0)
      // The kernel forgets the connection and must not track it again.
      sysctl('net/netfilter/nf_conntrack_tcp_loose', '0')
      execSync('conntrack', ['-F'])
      client.stdin.write('two')
      await untilTrue(() => count() > 0)
      t.ok(count() > 0)
      for (const child of [client, server]) child.kill()
      await mode.close()
      accounts.close()
    })

    await onNode('IT46: an edit with an equal number of rules is repaired', async (t, node) => {
      const mode = await node.create(400)
      const cluster = states().put(service({ endpoints: 2 }))
      const plan = await apply(mode, cluster)
      const stop = new AbortController()
      const running = mode.run(stop.signal)
      const table = [`iptables-${backend}`, '-t', 'nat'] as const
      const list = (chain: string) => execSync(table[0], [...table.slice(1), '-S', chain])
      const before = list('KUBE-SERVICES')
      const rule = /-d 10\.96\.0\.10\/32 .*/.exec(before)?.[0] ?? ''
      const edited = rule.replace('10.96.0.10', '10.96.0.66')
      const edit = `*nat\n-R KUBE-SERVICES 1 ${edited}\nCOMMIT\n`
      execSync(`iptables-${backend}-restore`, ['--noflush'], edit)
      t.match(list('KUBE-SERVICES'), '10.96.0.66')
      await untilTrue(() => node.resyncs.length > 0)
      t.match(node.resyncs[0], /nat KUBE-SERVICES lacks -d 10.96.0.10/)
      mode.forget()
      await mode.apply(plan)
      t.equal(list('KUBE-SERVICES'), before)
      stop.abort()
      await running
      await mode.close()
    })

    await onNode('IT10: rules come back after a cleanup by another process', async (t, node) => {
      const mode = await node.create()
      const cluster = states().put(service({ endpoints: 2 }))
      await apply(mode, cluster)
      await node.definition.cleanup(node.context)
      cluster.put(service({ endpoints: 3 }))
      t.same((await mode.apply(mode.plan(cluster.take()))).failed, [])
      const rules = execSync(`iptables-${backend}`, ['-S', 'KUBE-FORWARD'])
      t.match(rules, 'ct_state_invalid_dropped_pkts')
      await mode.close()
    })

    await onNode('IT46: a flush that leaves the chains is seen by a look', async (t, node) => {
      const mode = await node.create(8_000)
      await apply(mode, states().put(service({ endpoints: 2 })))
      const stop = new AbortController()
      const running = mode.run(stop.signal)
      node.programs.length = 0
      execSync(`iptables-${backend}`, ['-t', 'nat', '-F'])
      await untilTrue(() => node.resyncs.length > 0)
      t.match(node.resyncs[0], /table nat was flushed: chain KUBE-POSTROUTING is empty/)
      t.notOk(
        node.programs.some((file) => file.includes('save')),
        'before all rules are read',
      )
      stop.abort()
      await running
      await mode.close()
    })

    await onNode('IT46: rules that nobody changed are not read again', async (t, node) => {
      const mode = await node.create(200)
      const cluster = states().put(service({ endpoints: 2 }))
      await apply(mode, cluster)
      const stop = new AbortController()
      const running = mode.run(stop.signal)
      const saves = () => node.programs.filter((file) => file.includes('save')).length
      const readOnce = saves() + 1
      await untilTrue(() => saves() >= readOnce)
      let programs = -1
      const isQuiet = () => programs === (programs = node.programs.length)
      // The other backend counts no transactions, so its rules are read again and again.
      if (backend === 'nft') await until('the end of the reading', isQuiet, 1000)
      node.programs.length = 0
      cluster.put(service({ endpoints: 3 }))
      await apply(mode, cluster)
      if (backend === 'nft') {
        await sleep(1000)
        t.same(node.programs, ['iptables-nft-restore'], 'our own change is no reason to')
      } else await until('a reading', () => saves() > 0)

      execSync(`iptables-${backend}`, ['-t', 'nat', '-N', 'OF-ANOTHER'])
      node.programs.length = 0
      await untilTrue(() => saves() >= 1)
      t.same(node.resyncs, [], 'somebody else’s chain is a reason to look, and no change of ours')
      execSync(`iptables-${backend}`, ['-t', 'nat', '-X', 'OF-ANOTHER'])
      stop.abort()
      await running
      await mode.close()
    })
  }
})

t.test(
  'IT46: a commit of another program during a full sync is not taken for our own',
  { skip: skip || false },
  async (t) => {
    const another = (action: string) =>
      execSync('iptables-nft', ['-t', 'nat', action, 'OF-ANOTHER'])
    let isDisturbed = false
    const node = new Node('nft')
    const settings = iptablesSettings(configWith({}))
    const opened = await openFamilies(() => settings, ['IPv4'], node.context.log, {
      backend: 'nft',
      run: (file, ...rest) => {
        if (isDisturbed && file === 'iptables-nft-restore') another('-N')
        return runProgram(file, ...rest)
      },
      openAccounts: () => Promise.resolve(openPacketAccounts()),
      openGeneration,
    })
    const { families, foreign, facts, accounts } = opened
    const rules = families.get('IPv4')
    const plan = iptablesPlanner({ ...settings, ...facts })(states().put(service()).take())
    await rules?.apply(plan)
    const before = foreign.mark
    rules?.forget()
    isDisturbed = true
    await rules?.apply(plan)
    t.equal(foreign.mark, Number(before) + 1, 'though a table had all that was written')
    another('-X')
    accounts?.close()
    await node.definition.cleanup(node.context)
  },
)

const echoServer = `
  require('node:net').createServer((socket) => socket.pipe(socket)).listen(80, () => console.log('up'))`
const talkingClient = `
  const socket = require('node:net').connect(80, '10.99.1.2')
  process.stdin.pipe(socket).on('data', (data) => console.log(String(data)))`

async function line(child: ChildProcessWithoutNullStreams): Promise<string> {
  const [data] = (await once(child.stdout, 'data')) as [Buffer]
  return data.toString().trim()
}
