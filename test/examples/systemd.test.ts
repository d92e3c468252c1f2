import { spawnSync } from 'node:child_process'
import { copyFile, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { parseFlags } from '../../lib/config/flags.js'
import { loadConfig } from '../../lib/config/load.js'
import { runCommand } from '../support/run-command.js'
import { confine, profileFile } from '../security/confinement.js'
import { listenForDatagrams } from '../support/datagram-socket.js'
import {
  ask,
  nftables,
  patient,
  service,
  skip,
  sliceOf,
  withProxyWorld,
  write,
} from '../e2e/proxy-world.js'
import { until } from '../support/until.js'

const unit = fileURLToPath(new URL('../../../examples/systemd/kube-proxy.service', import.meta.url))
const command = fileURLToPath(new URL('../../lib/cli/main.js', import.meta.url))
const noSystemd = spawnSync('systemd-analyze', ['--version']).error
  ? 'systemd-analyze is not installed (Debian package systemd)'
  : false
const noFilter =
  spawnSync(process.execPath, [confine, profileFile('nftables'), 'true']).status === 0
    ? false
    : 'libseccomp.so.2 is not installed (Debian package libseccomp2)'

/** The system calls of a group, which may contain others. */
async function callsOf(group: string): Promise<readonly string[]> {
  const { stdout } = await runCommand('systemd-analyze', ['syscall-filter', group])
  const names = Array.from(stdout.matchAll(/^ {4}([@\w-]+)$/gm), ([, name = '']) => name)
  const inside = names.filter((name) => name.startsWith('@')).map(callsOf)
  return [...names, ...(await Promise.all(inside)).flat()]
}

t.test(
  'what the unit lets a process do is enough for Node, and what it does not only fails',
  { skip: noSystemd || noFilter },
  async (t) => {
    const text = await readFile(unit, 'utf8')
    // Modes try calls such as bpf(2), and go on without.
    t.match(text, /^SystemCallErrorNumber=EPERM$/m)
    const [, groups = ''] = /^SystemCallFilter=(.*)$/m.exec(text) ?? []
    const names = (await Promise.all(['@default', ...groups.split(' ')].map(callsOf))).flat()
    const syscalls = [
      { names: names.filter((name) => !name.startsWith('@')), action: 'SCMP_ACT_ALLOW' },
    ]
    const profile = join(t.testdir({}), 'profile.json')
    await writeFile(profile, JSON.stringify({ defaultAction: 'SCMP_ACT_KILL_PROCESS', syscalls }))
    const argv = [confine, profile, process.execPath, command, '--version']
    t.match(spawnSync(process.execPath, argv, { encoding: 'utf8' }), { status: 0, signal: null })
  },
)

t.test('systemd understands every line of the unit', { skip: noSystemd }, async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'unit-'))
  try {
    const copy = join(folder, 'kube-proxy.service')
    // The programs that the unit starts need not be installed here.
    const text = await readFile(unit, 'utf8')
    t.match(text, /^Type=notify$/m)
    await copyFile(unit, copy)
    const { stderr } = await runCommand('systemd-analyze', ['verify', '--man=no', copy])
    const complaints = stderr.split('\n').filter((line) => line.includes('kube-proxy.service'))
    t.same(
      complaints.filter((line) => !/is not executable/.test(line)),
      [],
    )
  } finally {
    await rm(folder, { recursive: true })
  }
})

t.test('systemd waits for the first rules of a slow node', async (t) => {
  // Without this line it ends a start after 90 s, and begins the next one.
  t.match(await readFile(unit, 'utf8'), /^TimeoutStartSec=15min$/m)
})

t.test('the numbers of connections outlive a restart of the unit', async (t) => {
  // Without the second line systemd removes the folders whenever it stops the process.
  const folder = loadConfig(parseFlags([]), undefined).config.flows.stateFile.split('/')[2]
  t.match(await readFile(unit, 'utf8'), new RegExp(`^RuntimeDirectory=.*\\b${folder}$`, 'm'))
  t.match(await readFile(unit, 'utf8'), /^RuntimeDirectoryPreserve=restart$/m)
})

t.test('this program accepts the commands of the unit', async (t) => {
  const lines = (await readFile(unit, 'utf8')).matchAll(/^ExecStart(?:Pre)?=\S+ \S+ (.*)$/gm)
  const commands = [...lines].map(([, flags = '']) => flags.split(' '))
  t.equal(commands.length, 2)
  for (const flags of commands) {
    const pairs = flags.map((flag) => flag.replace('--', '').split('='))
    const given = pairs.map(([name = '', value = 'true']) => [name, value] as const)
    t.same(loadConfig(parseFlags(given), undefined).warnings, [])
  }
})

t.test('the commands in the unit make each folder and user that it names', async (t) => {
  const text = await readFile(unit, 'utf8')
  const commands = (text.match(/^# {3}.*$/gm) ?? []).join('\n')
  const [, folder = '?'] = /--manifests=(\/\S+)/.exec(text) ?? []
  const [, user = '?'] = /^User=(.*)$/m.exec(text) ?? []
  const [, program = '?'] = /(\/opt\/[^/]+)\/build/.exec(text) ?? []
  // Until the folder is there, no rules are in force, and systemd waits for the start.
  for (const made of [`mkdir -p ${folder}`, `/nologin ${user}`, `cp -a . ${program}`])
    t.match(commands, made)
})

t.test(
  'Type=notify: the process tells systemd that it is ready, that it lives, and that it stops',
  { skip },
  (t) =>
    withProxyWorld('systemd', async ({ world, folder }) => {
      const path = join(folder, 'notify')
      const socket = listenForDatagrams(path)
      const told: string[] = []
      const listen = () => told.push(...socket.received())
      await write(folder, 'web.yaml', service, sliceOf('pod-1'))
      const env = ['env', `NOTIFY_SOCKET=${path}`, 'WATCHDOG_USEC=200000']
      const flags = [
        ...nftables,
        '--manifests',
        join(folder, 'web.yaml'),
        '--hostname-override=node-1',
      ]
      const proxy = world.spawn('node', [...env, process.execPath, command, ...flags])
      try {
        await until('it says that it is ready', () => {
          listen()
          return told.some((text) => /^READY=1\nSTATUS=.*nftables/.test(text))
        })
        t.equal(await ask(world, patient), 'pod-1', 'and so it is')
        const before = told.length
        await until('three signs of life', () => listen() - before >= 3)
        t.equal(told.filter((text) => text.startsWith('READY')).length, 1)
        proxy.kill('SIGTERM')
        await until('it says that it stops', () => {
          listen()
          return told.at(-1) === 'STOPPING=1'
        })
      } finally {
        proxy.kill('SIGKILL')
        socket.close()
      }
    }),
)
