import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import t, { type Test } from 'tap'
import { applyConntrackSettings, cpuCount, wantedMax } from '../../lib/kernel/conntrack-settings.js'
import { Sysctls } from '../../lib/kernel/sysctl.js'

const off = {
  maxPerCore: 0,
  min: 0,
  tcpEstablishedTimeout: 0,
  tcpCloseWaitTimeout: 0,
  udpTimeout: 0,
  udpStreamTimeout: 0,
  tcpBeLiberal: false,
}

const netfilter = (name: string) => `proc/sys/net/netfilter/nf_conntrack_${name}`
const hashsize = 'sys/module/nf_conntrack/parameters/hashsize'

/** A folder that looks like a kernel with these values. */
function fakeRoot(t: Test, files: Readonly<Record<string, string>>) {
  const root = t.testdir({})
  for (const [path, content] of Object.entries(files)) {
    mkdirSync(dirname(join(root, path)), { recursive: true })
    writeFileSync(join(root, path), `${content}\n`)
  }
  return {
    sysctls: new Sysctls(root),
    value: (path: string) => readFileSync(join(root, path), 'utf8').trim(),
  }
}

t.test('CT09: the table has min or maxPerCore x CPUs entries, the larger one', (t) => {
  t.equal(wantedMax({ ...off, maxPerCore: 32_768, min: 131_072 }, 2), 131_072)
  t.equal(wantedMax({ ...off, maxPerCore: 32_768, min: 131_072 }, 8), 262_144)
  t.equal(wantedMax({ ...off, maxPerCore: 32_768, min: 131_072 }, 96), 1_048_576)
  t.equal(wantedMax({ ...off, maxPerCore: 32_768, min: 2_000_000 }, 96), 2_000_000)
  t.equal(wantedMax({ ...off, min: 131_072 }, 8), 0, 'maxPerCore 0 leaves the kernel alone')
  t.end()
})

t.test('CT10, CT11: the table and its hash grow with the CPUs of the machine', (t) => {
  const kernel = fakeRoot(t, {
    'sys/devices/system/cpu/online': '0-3,6,8-9',
    [netfilter('max')]: '65536',
    [hashsize]: '16384',
  })
  t.equal(cpuCount(kernel.sysctls), 7)
  const outcomes = applyConntrackSettings({ ...off, maxPerCore: 32_768 }, kernel.sysctls)
  t.strictSame(
    outcomes.map(({ result }) => result),
    ['written', 'written'],
  )
  t.equal(kernel.value(netfilter('max')), '229376')
  t.equal(kernel.value(hashsize), '57344')
  const again = applyConntrackSettings({ ...off, maxPerCore: 32_768 }, kernel.sysctls)
  t.ok(again.every(({ result }) => result === 'unchanged'))
  t.ok(cpuCount(new Sysctls(t.testdir({}))) > 0, 'without /sys the runtime count serves')
  t.end()
})

t.test('a larger table or hash that exists already stays', (t) => {
  const kernel = fakeRoot(t, {
    'sys/devices/system/cpu/online': '0-95',
    [netfilter('max')]: '4000000',
    [hashsize]: '1000000',
  })
  const outcomes = applyConntrackSettings({ ...off, maxPerCore: 32_768 }, kernel.sysctls)
  t.strictSame(
    outcomes.map(({ result }) => result),
    ['kept-larger', 'kept-larger'],
  )
  t.equal(kernel.value(netfilter('max')), '4000000')
  t.equal(kernel.value(hashsize), '1000000')
  t.end()
})

t.test('CT12: time-outs are raised and lowered, and not written if they are right', (t) => {
  const kernel = fakeRoot(t, {
    [netfilter('tcp_timeout_established')]: '432000',
    [netfilter('tcp_timeout_close_wait')]: '60',
    [netfilter('udp_timeout')]: '30',
    [netfilter('udp_timeout_stream')]: '120',
  })
  const settings = {
    ...off,
    tcpEstablishedTimeout: 86_400_000,
    tcpCloseWaitTimeout: 3_600_000,
    udpTimeout: 9500,
    udpStreamTimeout: 120_000,
  }
  t.strictSame(
    applyConntrackSettings(settings, kernel.sysctls).map(({ result }) => result),
    ['written', 'written', 'written', 'unchanged'],
  )
  t.equal(kernel.value(netfilter('tcp_timeout_established')), '86400')
  t.equal(kernel.value(netfilter('tcp_timeout_close_wait')), '3600')
  t.equal(kernel.value(netfilter('udp_timeout')), '10')
  t.end()
})

t.test('CT12: only the given settings are written', (t) => {
  const names = ['tcp_timeout_close_wait', 'udp_timeout', 'udp_timeout_stream', 'tcp_be_liberal']
  const kernel = fakeRoot(t, Object.fromEntries(names.map((name) => [netfilter(name), '0'])))
  const settings = { ...off, udpTimeout: 45_000, tcpBeLiberal: true }
  t.strictSame(
    applyConntrackSettings(settings, kernel.sysctls).map(({ name }) => name),
    ['net/netfilter/nf_conntrack_udp_timeout', 'net/netfilter/nf_conntrack_tcp_be_liberal'],
  )
  t.strictSame(
    names.map((name) => kernel.value(netfilter(name))),
    ['0', '45', '0', '1'],
  )
  t.end()
})

t.test('CT13: a setting that cannot be read or written gives a reason, and does not throw', (t) => {
  const kernel = fakeRoot(t, { [join(netfilter('max'), 'a-folder-cannot-be-written')]: '' })
  const [max, hash] = applyConntrackSettings({ ...off, maxPerCore: 1, min: 10 }, kernel.sysctls)
  t.match(max, { result: 'missing', reason: /no net\/netfilter\/nf_conntrack_max/ })
  t.match(hash, { result: 'missing' })
  if (process.getuid?.() === 0) {
    const readOnly = new Sysctls('/').ensureFile('proc/version', { name: 'version', value: 1 })
    t.match(readOnly, { result: 'failed', reason: /set version from .*; set it on the host/ })
    // Many settings are on by default, so a configuration without them sets them as well.
    t.notMatch(readOnly.reason, 'leave it out')
  }
  t.end()
})
