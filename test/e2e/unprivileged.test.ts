import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { chmod } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { ask, service, skip, sliceOf, withProxyWorld, write } from './proxy-world.js'
import { until } from '../support/until.js'

/** The daemon runs as a user with only two capabilities. */

const command = fileURLToPath(new URL('../../lib/cli/main.js', import.meta.url))

const capabilities = '+net_admin,+net_raw'
const unprivileged = [
  ...['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups', '--no-new-privs'],
  ...[`--inh-caps=-all,${capabilities}`, `--ambient-caps=-all,${capabilities}`],
  `--bounding-set=-all,${capabilities}`,
]

const skipUnprivileged =
  skip ||
  (spawnSync('setpriv', ['--version']).error
    ? 'setpriv is not installed (Debian package util-linux)'
    : spawnSync('setpriv', ['--reuid=65534', '--clear-groups', 'test', '-r', command]).status !== 0
      ? 'other users may not read this folder'
      : false)

for (const mode of ['nftables', 'iptables', 'userspace'] as const) {
  t.test(`RB04: ${mode} mode serves as an unprivileged user`, { skip: skipUnprivileged }, (t) =>
    withProxyWorld(`unprivileged-${mode}`, async ({ world, folder }) => {
      await chmod(folder, 0o755)
      await write(folder, 'web.yaml', service, sliceOf('pod-1'))
      const proxy = world.spawn('node', [
        ...unprivileged,
        ...['env', 'XTABLES_LOCKFILE=/dev/null', process.execPath, command],
        ...['--proxy-mode', mode, '--proxy-mode-fallback=none', '--hostname-override=node-1'],
        ...['--cluster-cidr=10.244.0.0/16', '--manifests', folder, '--logging-format=text'],
      ])
      let output = ''
      for (const stream of [proxy.stdout, proxy.stderr]) {
        stream.setEncoding('utf8').on('data', (text: string) => (output += text))
      }
      try {
        const answered = until('an answer', async () => (await ask(world)) === 'pod-1')
        await answered.catch((error: unknown) => {
          throw new Error(`${String(error)}\n${output}`)
        })
        t.notMatch(output, /ERROR|EPERM|not permitted/)
        await write(folder, 'web.yaml', service, sliceOf('pod-2'))
        await until('the change arrives', async () => (await ask(world)) === 'pod-2')
      } finally {
        t.comment(output)
        proxy.kill('SIGKILL')
      }
    }),
  )
}

const skipWithoutIptables =
  skipUnprivileged || (!existsSync('/usr/sbin/iptables') && 'no /usr/sbin/iptables')

/** Runs a command as a user without any rights. */
function runAsNobody(words: readonly string[], env = process.env) {
  const asNobody = ['--reuid=65534', '--regid=65534', '--clear-groups']
  const args = [...asNobody, process.execPath, command, ...words]
  return spawnSync('/usr/bin/setpriv', args, { env, encoding: 'utf8' })
}

t.test(
  'check tells a user without rights that rights are missing, not programs in /usr/sbin',
  { skip: skipWithoutIptables },
  (t) => {
    const env = { ...process.env, PATH: '/usr/bin:/bin' }
    const { stdout } = runAsNobody(['check', '--json'], env)
    const checks = JSON.parse(stdout) as {
      findings: { what: string; seen: string; fix: string }[]
    }[]
    const findings = checks
      .flatMap(({ findings }) => findings)
      .filter(({ what }) => what.startsWith('iptables'))
    t.ok(findings.length > 2, 'three modes ask for it')
    for (const { seen, fix } of findings) {
      t.match(seen, /Permission denied|not permitted/)
      t.match(fix, /run as root|NET_ADMIN/)
      t.notMatch(fix, /apt-get install/)
    }
    t.end()
  },
)

t.test(
  'cleanup without rights says of no mode with iptables that it is cleaned up',
  { skip: skipWithoutIptables },
  (t) => {
    const { status, stderr, stdout } = runAsNobody(['cleanup'])
    t.equal(status, 1)
    for (const mode of ['iptables', 'userspace', 'ipvs']) {
      t.match(stderr, new RegExp(`${mode}: .*Permission denied`))
      t.notMatch(stdout + stderr, new RegExp(`"mode":"${mode}","msg":"Cleaned up"`))
    }
    t.end()
  },
)
