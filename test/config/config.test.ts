import t from 'tap'
import type { LoadedConfig } from '../../lib/config/load.js'
import { configWith, defaultConfig, loadConfig } from '../../lib/config/load.js'
import {
  durationKind,
  floatKind,
  gatesKind,
  intKind,
  verbosityKind,
  listKind,
  logDurationKind,
  pathKind,
  quantityKind,
  vmoduleKind,
  type Kind,
} from '../../lib/config/kinds.js'
import { originText, quote } from '../../lib/config/settings.js'
import { nearest } from '../../lib/state/names.js'
import { formatDuration, parseDuration } from '../../lib/config/duration.js'
import { apiVersion, kind } from '../../lib/config/file.js'
import { actionFlags, normalizeArguments, parseFlags } from '../../lib/config/flags.js'
import { keyEntries, retiredFlags } from '../../lib/config/keys.js'
import { nodePortAddresses } from '../../lib/config/tracker-settings.js'
import { ipvsSettings } from '../../lib/modes/ipvs/settings.js'
import type { SyncPeriods } from '../../lib/modes/mode.js'
import { modeLoaders, modeNames } from '../../lib/modes/registry.js'
import { nftablesSettings } from '../../lib/modes/nftables/settings.js'
import { userspaceSettings } from '../../lib/modes/userspace/settings.js'
import { configObject, configYaml } from '../../lib/config/write.js'
import { startWarnings } from '../../lib/config/start-check.js'
import type { ModeName } from '../../lib/config/config.js'
import { gateWarnings, isEnabled } from '../../lib/config/feature-gates.js'
import { type IpFamily, parseHostPort, parsePortRange } from '../../lib/state/ip.js'
import { ConfigError } from '../../lib/errors.js'

const header = `apiVersion: ${apiVersion}\nkind: ${kind}\n`

/** Loads as the command does: from `--name=value` arguments, and from the body of a file. */
function load(args: readonly string[], body?: string): LoadedConfig {
  const given = normalizeArguments(args).map((argument): [string, string] => {
    const [, flag = '', text = ''] = /^--([^=]+)=?(.*)$/s.exec(argument) ?? []
    return [flag, text]
  })
  const file = body === undefined ? undefined : { name: 'kp.yaml', text: header + body }
  return loadConfig(parseFlags(given), file)
}

function problemOf(args: readonly string[], body?: string): string {
  try {
    load(args, body)
  } catch (error) {
    if (error instanceof ConfigError) return error.message
    throw error
  }
  return 'accepted'
}

t.test('durations are read and printed as Go does', (t) => {
  const cases: readonly (readonly [string, number, string])[] = [
    ['30s', 30_000, '30s'],
    ['1h', 3_600_000, '1h0m0s'],
    ['1h30m', 5_400_000, '1h30m0s'],
    ['1.5s', 1500, '1.5s'],
    ['250ms', 250, '250ms'],
    ['0', 0, '0s'],
    ['-1s', -1000, '-1s'],
    ['10us', 0.01, '10µs'],
    ['10µs', 0.01, '10µs'],
    ['10\u03bcs', 0.01, '10µs'],
    ['24h0m0s', 86_400_000, '24h0m0s'],
    ['90s', 90_000, '1m30s'],
  ]
  for (const [text, ms, printed] of cases) {
    t.equal(parseDuration(text), ms, text)
    t.equal(formatDuration(ms), printed, printed)
  }
  for (const text of ['', '5', 's', '1 s', '1d', '1s ', 'abc', '1h-3m', '--1s']) {
    t.equal(parseDuration(text), undefined, `${text} is no duration`)
  }
  t.end()
})

t.test('section 11: defaults equal those of kube-proxy 1.36, but for the pace of syncs', (t) => {
  const config = defaultConfig()
  t.match(config, {
    bindAddress: '0.0.0.0',
    healthzBindAddress: '0.0.0.0:10256',
    metricsBindAddress: '127.0.0.1:10249',
    mode: '',
    oomScoreAdj: -999,
    configSyncPeriod: 900_000,
    udpIdleTimeout: 250,
    clientConnection: { contentType: 'application/vnd.kubernetes.protobuf', qps: 5, burst: 10 },
    iptables: {
      masqueradeBit: 14,
      masqueradeAll: false,
      localhostNodePorts: true,
      syncPeriod: 30_000,
      minSyncPeriod: 'measured',
    },
    ipvs: { syncPeriod: 30_000, minSyncPeriod: 'measured', tcpTimeout: 0 },
    nftables: { masqueradeBit: 14, syncPeriod: 30_000, minSyncPeriod: 'measured' },
    conntrack: {
      maxPerCore: 32768,
      min: 131072,
      tcpEstablishedTimeout: 86_400_000,
      tcpCloseWaitTimeout: 3_600_000,
    },
  })
  t.same(load([], '').config, { ...config }, 'a file that says nothing is the default')
  t.ok(Object.isFrozen(config.conntrack), 'a configuration cannot be changed')
  t.end()
})

t.test('section 11: zero in a file means the default for the same keys as in kube-proxy', (t) => {
  const { config } = load(
    [],
    `bindAddress: ""
healthzBindAddress: ""
metricsBindAddress: ""
clientConnection: {qps: 0, burst: 0, contentType: "", kubeconfig: /k}
iptables: {minSyncPeriod: 0s, syncPeriod: 0s, masqueradeBit: null}
ipvs: {minSyncPeriod: 0s, syncPeriod: 0s}
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s}
oomScoreAdj: 0
`,
  )
  t.equal(config.healthzBindAddress, '0.0.0.0:10256', 'cannot be emptied by a file')
  t.equal(config.metricsBindAddress, '127.0.0.1:10249')
  t.equal(config.clientConnection.qps, 5)
  t.equal(config.iptables.minSyncPeriod, 'measured', 'immediate is reachable only by flag')
  t.equal(config.iptables.masqueradeBit, 14, 'null is a key left out')
  t.equal(config.ipvs.minSyncPeriod, 'measured')
  t.equal(config.ipvs.syncPeriod, 30_000)
  t.equal(config.conntrack.maxPerCore, 0, 'pointers keep their zero')
  t.equal(config.conntrack.tcpEstablishedTimeout, 0)
  t.equal(config.oomScoreAdj, 0)
  t.equal(load(['--iptables-min-sync-period=0s']).config.iptables.minSyncPeriod, 0)
  t.equal(load(['--iptables-min-sync-period=0s']).config.nftables.minSyncPeriod, 0)
  t.equal(load(['--ipvs-min-sync-period=0s']).config.ipvs.minSyncPeriod, 0)
  t.end()
})

t.test('all wrong keys and values are reported at once, with file and line', (t) => {
  const message = problemOf(
    [],
    `iptables:
  syncPeriods: 30s
  masqueradeBit: fourteen
mode: ipvz
conntrack: 5
clusterCDIR: 10.0.0.0/8
bindAddressHardFail: "true"
nodePortAddresses: primary
featureGates: {A: 1}
configSyncPeriod: 15
`,
  )
  for (const line of [
    'kp.yaml:4: iptables.syncPeriods: "30s": unknown key; did you mean iptables.syncPeriod?',
    'kp.yaml:5: iptables.masqueradeBit: "fourteen" is not a whole number',
    'kp.yaml:6: mode: "ipvz" is not one of "", userspace, winuserspace, iptables, ipvs, nftables, ebpf, auto',
    'kp.yaml:7: conntrack: 5 is not a map',
    'kp.yaml:8: clusterCDIR: "10.0.0.0/8": unknown key; did you mean clusterCIDR?',
    'kp.yaml:9: bindAddressHardFail: "true" is not true or false',
    'kp.yaml:10: nodePortAddresses: "primary" is not a list of strings',
    'kp.yaml:11: featureGates: {"A":1} is not a map of feature gates such as {Name: true}, as a flag Name=true,…',
    'kp.yaml:12: configSyncPeriod: 15 is not a duration such as 30s',
  ]) {
    t.match(message, line)
  }
  t.equal(message.split('\n').length, 9)
  t.equal(problemOf([], 'mode: ipvs\nmode: iptables\n'), 'kp.yaml:4: mode: the key is there twice')
  t.equal(
    problemOf([], 'conntrack: {min: 1, "min": 2}\n'),
    'kp.yaml:3: "min": the key is there twice',
  )
  t.match(problemOf([], 'mode: [ipvs\n'), /^kp\.yaml:\d+: /)
  const name = 'x.yaml'
  const none = parseFlags([])
  for (const [text, pattern] of [
    ['', /has no KubeProxyConfiguration/],
    ['mode: ipvs\n', /kind is missing; write kind: KubeProxyConfiguration/],
    ['kind: ConfigMap\n', /this is a ConfigMap; give the text under its key config\.conf/],
    [header.replace('v1alpha1', 'v1'), /apiVersion is "kubeproxy.config.k8s.io\/v1"; write/],
  ] as const) {
    t.throws(() => loadConfig(none, { name, text }), { message: pattern })
  }
  t.end()
})

t.test('only the first document of a file counts, as for Kubernetes', (t) => {
  const { config, warnings } = load([], 'mode: nftables\n---\nmode: [ipvs\n---\n')
  t.equal(config.mode, 'nftables')
  t.match(warnings, ['kp.yaml:4: not read: only the first document counts'])
  t.end()
})

t.test('YAML 1.1 booleans, JSON and quantities are read as Kubernetes reads them', (t) => {
  const { config } = load([], 'iptables: {masqueradeAll: yes, localhostNodePorts: off}\n')
  t.equal(config.iptables.masqueradeAll, true)
  t.equal(config.iptables.localhostNodePorts, false)
  const text = JSON.stringify({ apiVersion, kind, mode: 'ipvs', logging: { flushFrequency: 5e9 } })
  t.equal(loadConfig(parseFlags([]), { name: 'kp.json', text }).config.mode, 'ipvs')
  const { logging } = load(
    [],
    `logging:
  format: json
  verbosity: 2
  vmodule: [{filePattern: proxier, verbosity: 5}]
  options: {json: {splitStream: true, infoBufferSize: 16Ki}, text: {infoBufferSize: "0"}}
`,
  ).config
  t.equal(logging.options.json.infoBufferSize, 16384)
  t.same(logging.vmodule, [{ filePattern: 'proxier', verbosity: 5 }])
  t.end()
})

t.test('aliases and merge keys of YAML mean what they stand for', (t) => {
  const { config, origins } = load(
    [],
    `iptables: &s
  syncPeriod: &p 31s
  minSyncPeriod: 2s
ipvs: *s
nftables: {minSyncPeriod: 3s, <<: *s}
conntrack:
  <<: [{min: 5}, &c {min: 6, maxPerCore: 7}]
  tcpEstablishedTimeout: *p
featureGates: {<<: {A: true, B: true}, B: false}
nodePortAddresses: [&n 10.0.0.0/8, *n]
&i clusterCIDR: 10.244.0.0/16
`,
  )
  t.match(config, {
    iptables: { syncPeriod: 31_000, minSyncPeriod: 2000 },
    ipvs: { syncPeriod: 31_000, minSyncPeriod: 2000 },
    nftables: { syncPeriod: 31_000, minSyncPeriod: 3000 },
    conntrack: { min: 5, maxPerCore: 7, tcpEstablishedTimeout: 31_000 },
    featureGates: { A: true, B: false },
    nodePortAddresses: ['10.0.0.0/8', '10.0.0.0/8'],
  })
  t.equal(originText(origins.get('ipvs.syncPeriod')), 'kp.yaml:4', 'where the value is written')
  t.end()
})

t.test('what is wrong with aliases and merge keys is told with its line', (t) => {
  const anchor = 'iptables: &s {syncPeriod: 31s, masqueradeBit: 14}\n'
  for (const [body, problem] of [
    [`${anchor}ipvs: *s\n`, /^kp\.yaml:3: ipvs\.masqueradeBit: 14: unknown key/],
    [`${anchor}ipvs: {<<: *s}\n`, /^kp\.yaml:3: ipvs\.masqueradeBit: 14: unknown key/],
    [`${anchor}mode: *s\n`, /^kp\.yaml:4: mode: \{"syncPeriod":"31s","masqueradeBit":14\} is not/],
    ['mode: *s\n', 'kp.yaml:3: the alias *s has no anchor'],
    ['mode: &s\n  a: *s\n', 'kp.yaml:4: the alias *s is within &s itself'],
    ['ipvs:\n  <<: 5\n', 'kp.yaml:4: <<: 5 is neither a map nor a list of maps'],
    ['ipvs:\n  <<: [{}, x]\n', 'kp.yaml:4: <<: [{},"x"] is neither a map nor a list of maps'],
    ['ipvs: {"<<": {}}\n', /^kp\.yaml:3: ipvs\.<<: "\{…\}": unknown key/],
    ['&m mode: ipvs\n*m : nftables\n', 'kp.yaml:4: mode: the key is there twice'],
  ] as const) {
    t.match(problemOf([], body), problem, body)
  }
  t.end()
})

t.test('aliases that would grow without limit are refused', (t) => {
  const chain = (first: string, link: (before: string) => string) =>
    Array.from({ length: 400 }, (_, at) => `a${at}: &a${at} ${at ? link(`*a${at - 1}`) : first}\n`)
  const twice = chain('[x]', (before) => `[${before}, ${before}]`).join('')
  const merged = chain('{x: 1}', (before) => `{<<: [${before}, ${before}]}`).join('')
  const deep = chain('[x]', (before) => `${'['.repeat(90)}${before}${']'.repeat(90)}`).join('')
  for (const body of [twice, merged, deep]) {
    t.match(problemOf([], body), /^kp\.yaml:\d+: \*a\d+: aliases stand for more than 10000 char/)
  }
  const few = deep.split('\n').slice(0, 9).join('\n')
  t.match(
    problemOf([], few),
    /^kp\.yaml:3: a0: \["x"\]: unknown key/,
    'many levels overflow nothing',
  )
  t.end()
})

t.test('section 12: --config makes other flags ignored, except a few that still apply', (t) => {
  const { config, warnings } = load(
    [
      '--proxy-mode=ipvs',
      '-v=4',
      '--hostname-override=n1',
      '--cluster-cidr',
      '10.0.0.0/8',
      '--dry-run',
    ],
    'mode: nftables\nhostnameOverride: fromfile\nlogging: {verbosity: 1}\n',
  )
  t.equal(config.mode, 'nftables')
  t.equal(config.clusterCIDR, '')
  t.equal(config.hostnameOverride, 'n1', 'the flag wins over the file')
  t.equal(config.logging.verbosity, 4)
  t.equal(config.dryRun, true)
  t.match(warnings.join('\n'), /ignored: --proxy-mode, --cluster-cidr; set/)
  t.end()
})

t.test('section 12: flags are read in every spelling that Go accepts', (t) => {
  t.same(
    normalizeArguments(['-v', '2', '-v=3', '-v4', '--cluster_cidr=a_b', '--masquerade-all', 'x']),
    ['--v', '2', '--v=3', '--v=4', '--cluster-cidr=a_b', '--masquerade-all=true', 'x'],
  )
  t.same(normalizeArguments(['--oom-score-adj', '-999', '--master', '--cleanup']), [
    '--oom-score-adj',
    '-999',
    '--master',
    '--cleanup',
  ])
  t.same(normalizeArguments(['--', '--cleanup']), ['--', '--cleanup'])
  for (const prints of ['', '=raw', '=true', '=1'])
    t.same(normalizeArguments([`--version${prints}`]), ['--version'])
  t.same(normalizeArguments(['--version=false', '--cleanup']), ['--cleanup=true'])
  t.same(normalizeArguments(['--version=v9']), ['--version=v9'])
  const { config, warnings } = load([
    '--masquerade-all',
    '--iptables-localhost-nodeports=false',
    '--iptables-sync-period=1m',
    '--nodeport-addresses=10.0.0.0/8,fd00::/8',
    '--nodeport-addresses=127.0.0.0/8',
    '--feature-gates=A=true,B=false',
    '--feature-gates=B=true',
    '--vmodule=a*=2,b=3',
    '--logtostderr',
  ])
  t.same([config.iptables.masqueradeAll, config.nftables.masqueradeAll], [true, true])
  t.equal(config.iptables.localhostNodePorts, false)
  t.equal(config.nftables.syncPeriod, 60_000, 'nftables has no flags of its own')
  t.same(config.nodePortAddresses, ['10.0.0.0/8', 'fd00::/8', '127.0.0.0/8'])
  t.same(config.featureGates, { A: true, B: true })
  t.equal(config.logging.vmodule.length, 2)
  t.equal(config.ipvs.minSyncPeriod, 'measured', 'by flags alone, too')
  t.match(warnings.join('\n'), /--logtostderr has no effect/)
  t.match(
    problemOf(['--masquerade-all=maybe', '--oom-score-adj=x', '--udp-timeout=5']),
    /--masquerade-all: "maybe" is not true or false\n--oom-score-adj: "x" is .*\n--udp-timeout: "5"/,
  )
  t.end()
})

t.test('VA09: the usual command line works, and an unknown feature gate is a warning', (t) => {
  const { config, warnings } = load([
    '--kubeconfig=/etc/kubernetes/kube-proxy.conf',
    '--cluster-cidr=10.240.0.0/12',
    '--feature-gates=ExperimentalCriticalPodAnnotation=true',
    '--proxy-mode=iptables',
  ])
  t.equal(config.clientConnection.kubeconfig, '/etc/kubernetes/kube-proxy.conf')
  t.equal(config.mode, 'iptables')
  t.same(warnings, [
    '--feature-gates: feature gate ExperimentalCriticalPodAnnotation is unknown and has no effect',
  ])
  t.end()
})

t.test(
  'section 12: flags set the health and metrics addresses and ports, or switch them off',
  (t) => {
    const both = (args: readonly string[], body?: string) => {
      const { healthzBindAddress, metricsBindAddress } = load(args, body).config
      return [healthzBindAddress, metricsBindAddress]
    }
    t.same(both(['--healthz-bind-address=', '--metrics-bind-address=']), ['', ''])
    t.same(both(['--healthz-port=0', '--metrics-port=0']), ['', ''])
    t.same(both(['--healthz-port=1', '--metrics-port=2']), ['0.0.0.0:1', '127.0.0.1:2'])
    t.same(both(['--healthz-bind-address=1.2.3.4', '--healthz-port=5'])[0], '1.2.3.4:5')
    t.same(both(['--healthz-bind-address=1.2.3.4:6', '--healthz-port=5'])[0], '1.2.3.4:6')
    t.same(both([], 'bindAddress: "::"\n'), ['[::]:10256', '[::1]:10249'])
    t.same(both([], 'healthzBindAddress: fd00::1\nmetricsBindAddress: 0.0.0.0\n'), [
      '[fd00::1]:10256',
      '0.0.0.0:10249',
    ])
    t.match(load(['--healthz-port=0'], '').warnings.join(), /ignored: --healthz-port/)
    t.end()
  },
)

t.test('section 13: each rule of validation refuses wrong values', (t) => {
  const refused: Readonly<Record<string, readonly (readonly [body: string, says: RegExp])[]>> = {
    VA01: [['mode: kernelspace\n', /kp\.yaml:3: mode/]],
    VA02: [
      ['iptables: {syncPeriod: -1s}\n', /iptables\.syncPeriod: "-1s" must be greater than 0/],
      ['iptables: {minSyncPeriod: 31s}\n', /must not exceed syncPeriod 30s/],
      ['mode: ipvs\nipvs: {minSyncPeriod: -1s}\n', /kp\.yaml:4: ipvs\.minSyncPeriod/],
      ['configSyncPeriod: -1s\n', /configSyncPeriod/],
    ],
    VA03: [
      ['bindAddress: localhost\n', /bindAddress: "localhost" is not an IP address/],
      ['bindAddress: 010.001.002.003\n', /bindAddress: "010\.001\.002\.003" is not an IP address/],
      ['metricsBindAddress: 127.0.0.01:80\n', /metricsBindAddress/],
      ['clusterCIDR: 010.0.0.0/8\n', /clusterCIDR: "010\.0\.0\.0\/8" is not a CIDR/],
      ['healthzBindAddress: 1.2.3.4:0\n', /healthzBindAddress: "1\.2\.3\.4:0"/],
      ['healthzBindAddress: 1.2.3.4:65536\n', /healthzBindAddress/],
      ['metricsBindAddress: host:80\n', /metricsBindAddress/],
    ],
    VA04: [
      ['iptables: {masqueradeBit: 32}\n', /is not within 0\.\.31/],
      ['mode: ipvs\niptables: {masqueradeBit: -1}\n', /is not within 0\.\.31/],
      ['mode: nftables\nnftables: {masqueradeBit: 32}\n', /nftables\.masqueradeBit/],
      ['oomScoreAdj: 1001\n', /is not within -1000\.\.1000/],
      ['conntrack: {maxPerCore: -1}\n', /conntrack\.maxPerCore/],
      ['conntrack: {min: -1}\n', /conntrack\.min/],
      ['conntrack: {tcpCloseWaitTimeout: -1s}\n', /conntrack\.tcpCloseWaitTimeout/],
      ['conntrack: {udpStreamTimeout: -1s}\n', /conntrack\.udpStreamTimeout/],
      ['clientConnection: {burst: -1}\n', /clientConnection\.burst/],
    ],
    VA05: [
      ['nodePortAddresses: [primary, Localhost]\n', /"Localhost" is not a CIDR .*nor primary/],
      ['nodePortAddresses: [10.0.0.1]\n', /"10\.0\.0\.1" is not a CIDR/],
    ],
    VA06: [
      ['mode: ipvs\nipvs: {excludeCIDRs: [x]}\n', /ipvs\.excludeCIDRs: "x" is not a CIDR/],
      ['mode: ipvs\nipvs: {udpTimeout: -1s}\n', /ipvs\.udpTimeout/],
    ],
    VA07: [
      ['detectLocalMode: Magic\n', /detectLocalMode: "Magic" is not one of/],
      ['detectLocalMode: BridgeInterface\n', /detectLocal\.bridgeInterface: "" must name/],
      ['detectLocalMode: InterfaceNamePrefix\n', /detectLocal\.interfaceNamePrefix/],
      ['clusterCIDR: 10.0.0.0\n', /clusterCIDR: "10\.0\.0\.0" is not a CIDR/],
      ['clusterCIDR: 10.0.0.0/8,11.0.0.0/8\n', /two of different families/],
      ['clusterCIDR: "10.0.0.0/8,fd00::/8,fd01::/16"\n', /two of different families/],
    ],
    VA08: [['showHiddenMetricsForVersion: "1.20"\n', /is not an earlier minor version, 1\.34/]],
    KEP5495: [
      [
        'mode: ipvs\nfeatureGates: { KubeProxyIPVS: false }\n',
        /mode: "ipvs" is switched off by .* KubeProxyIPVS/,
      ],
    ],
    VA09: [['logging: {format: xml}\n', /logging\.format: "xml" is not one of/]],
    'flows.otlp': [
      ['flows: {enabled: true, otlp: {endpoint: "collector:4318"}}\n', /is not a URL such as/],
      ['flows: {enabled: true, otlp: {endpoint: "http://a:b@c"}}\n', /without a password/],
      ['flows: {enabled: true, otlp: {endpoint: "http://c/?key=x"}}\n', /is not a URL/],
      ['flows: {otlp: {endpoint: "http://127.0.0.1:4318"}}\n', /add --flows/],
    ],
    'userspace.sourceAddress': [
      [
        'mode: userspace\nuserspace: {portals: addresses, sourceAddress: keep}\n',
        /sourceAddress: "keep" cannot be done with userspace\.portals addresses/,
      ],
    ],
    VA10: [
      ['udpIdleTimeout: -1s\n', /udpIdleTimeout: "-1s" must be greater than 0/],
      ['mode: userspace\nportRange: 9-1\n', /portRange: "9-1" is not a port range/],
      ['mode: winuserspace\nportRange: 9-1\n', /portRange: "9-1" is not a port range/],
    ],
  }
  for (const [id, cases] of Object.entries(refused)) {
    for (const [body, says] of cases) t.match(problemOf([], body), says, `${id}: ${body}`)
  }
  t.end()
})

t.test('section 13: values that upstream does not check in this mode are accepted', (t) => {
  const body = `nftables: {masqueradeBit: 99, syncPeriod: -1s}
ipvs: {excludeCIDRs: [x], tcpTimeout: -1s}
detectLocalMode: NodeCIDR
clusterCIDR: anything
portRange: anything
showHiddenMetricsForVersion: "1.35"
`
  t.equal(problemOf([], body), 'accepted')
  t.match(
    load([], body).warnings.join('\n'),
    /kp\.yaml:7: portRange.* is not a port range, so it is not used/,
  )
  t.equal(problemOf([], 'clusterCIDR: 10.0.0.0/8,fd00::/8\n'), 'accepted')
  t.end()
})

t.test('section 13: the sections of a fallback that is named are checked, too', (t) => {
  const problemWith = (fallback: string, line: string) =>
    problemOf([], `mode: ipvs\nmodeFallback: ${fallback}\n${line}\n`)
  const bit = 'nftables: {masqueradeBit: 40}'
  t.match(problemWith('nftables', bit), /^kp\.yaml:5: nftables\.masqueradeBit: 40 is not within/)
  t.equal(problemWith('iptables', bit), 'accepted')
  const ofNftables = 'nftables: {syncPeriod: -1s}'
  t.match(problemWith('nftables', ofNftables), /^kp\.yaml:5: nftables\.syncPeriod: "-1s" must be/)
  t.equal(problemWith('none', ofNftables), 'accepted')
  const ofIptables = 'iptables: {syncPeriod: -1s}'
  t.match(problemWith('iptables', ofIptables), /^kp\.yaml:5: iptables\.syncPeriod: "-1s" must be/)
  t.equal(problemWith('userspace', ofIptables), 'accepted')
  t.end()
})

t.test('keys and flags of older releases are accepted with a warning', (t) => {
  const { warnings } = load([], 'resourceContainer: /kube-proxy\nconntrack: {max: null}\n')
  t.match(warnings, [/kp\.yaml:3: resourceContainer is no longer known/])
  t.equal(warnings.length, 1, 'null says nothing')
  t.end()
})

t.test('a key without effect is reported once, and only if its value is not the default', (t) => {
  const { warnings } = load(
    [],
    'clientConnection: {qps: 50, burst: 10}\nwinkernel: {sourceVip: ""}\n',
  )
  t.equal(warnings.length, 1)
  t.match(warnings[0], /kp\.yaml:3: clientConnection\.qps has no effect here: /)
  t.end()
})

t.test('every mode of the registry can be requested', (t) => {
  for (const mode of modeNames) t.equal(load([`--proxy-mode=${mode}`]).config.mode, mode)
  t.end()
})

t.test('section 11: sync periods and masquerading are those of the active mode', async (t) => {
  const { config } = load(
    [],
    `iptables: {masqueradeAll: true, syncPeriod: 10s, minSyncPeriod: 2s, masqueradeBit: 3}
ipvs: {syncPeriod: 20s, minSyncPeriod: 3s, scheduler: sh}
nftables: {syncPeriod: 40s, minSyncPeriod: 4s, masqueradeBit: 5}
portRange: 30000+9
`,
  )
  const periods: Record<string, SyncPeriods> = {}
  for (const mode of modeNames) {
    periods[mode] = (await modeLoaders[mode]()).syncPeriods(config)
  }
  t.same(periods, {
    iptables: { minMs: 2000, syncMs: 10_000 },
    userspace: { minMs: 2000, syncMs: 10_000 },
    winuserspace: { minMs: 2000, syncMs: 10_000 },
    ipvs: { minMs: 3000, syncMs: 20_000 },
    nftables: { minMs: 4000, syncMs: 40_000 },
    ebpf: { minMs: 4000, syncMs: 40_000 },
  })
  t.match(ipvsSettings(config), {
    masqueradeAll: true,
    masqueradeBit: 3,
    verifyMs: 20_000,
    scheduler: 'sh',
  })
  t.match(userspaceSettings(config), {
    syncPeriodMs: 10_000,
    portRange: { from: 30000, to: 30009 },
    udpIdleTimeoutMs: 250,
  })
  t.match(nftablesSettings(config), { masqueradeAll: false, masqueradeBit: 5 })
  t.equal(ipvsSettings(defaultConfig()).scheduler, 'rr')
  t.same(nodePortAddresses(config, 'iptables'), [])
  t.same(nodePortAddresses(config, 'nftables'), ['primary'])
})

t.test('L23: a written configuration is read as the same, and kube-proxy accepts it', (t) => {
  const { config } = load(['--proxy-mode=ipvs', '--udp-timeout=1s', '--conntrack-min=7'])
  const text = configYaml(config)
  const again = loadConfig(parseFlags([]), { name: 'w.yaml', text })
  t.same(again.config, config)
  t.same(again.warnings, [])
  t.match(text, /udpIdleTimeout: 1s/)
  t.notMatch(configYaml(defaultConfig()), /udpIdleTimeout|userspace|manifests|modeFallback/)
  t.match(configObject(config), { conntrack: { min: 7, tcpEstablishedTimeout: '24h0m0s' } })
  t.end()
})

t.test('every key of the table is documented, and its value survives writing and reading', (t) => {
  for (const [path, key] of keyEntries) {
    t.ok(key.doc.length > 5 && !key.doc.endsWith('.'), `${path} has a sentence`)
    t.same(key.kind.fromYaml(key.kind.toYaml(key.initial)), key.initial, path)
    const isPath = /^(Path|File|Folder|Certificate|Private key|BPF file system)\b/.test(key.doc)
    t.equal(key.kind === pathKind, isPath, `${path} is a path where it is called one`)
  }
  t.end()
})

t.test('each kind of value accepts and refuses the right texts in YAML and flags', async (t) => {
  const cases: readonly (readonly [Kind<unknown>, unknown, unknown])[] = [
    [intKind, 2 ** 31 - 1, 2 ** 31 - 1],
    [intKind, 2 ** 31, undefined],
    [intKind, -(2 ** 31), -(2 ** 31)],
    [intKind, -(2 ** 31) - 1, undefined],
    [intKind, 1.5, undefined],
    [intKind, null, undefined],
    [floatKind, 1.5, 1.5],
    [floatKind, Infinity, undefined],
    [floatKind, '1.5', undefined],
    [listKind, ['a', 1], undefined],
    [listKind, 'a', undefined],
    [listKind, [], []],
    [gatesKind, null, undefined],
    [gatesKind, [], undefined],
    [gatesKind, 'A=true', undefined],
    [gatesKind, {}, {}],
    [vmoduleKind, [{ filePattern: 'a', verbosity: 0 }], [{ filePattern: 'a', verbosity: 0 }]],
    [vmoduleKind, [{ filePattern: 'a' }], undefined],
    [vmoduleKind, [{ verbosity: 1 }], undefined],
    [vmoduleKind, [{ filePattern: '', verbosity: 1 }], undefined],
    [vmoduleKind, [{ filePattern: 'a', verbosity: -1 }], undefined],
    [vmoduleKind, [{ filePattern: 'a', verbosity: 1, more: 1 }], undefined],
    [vmoduleKind, [null], undefined],
    [vmoduleKind, {}, undefined],
    [logDurationKind, 1_500_000, 1.5],
    [logDurationKind, '2s', 2000],
    [durationKind, 5, undefined],
    [quantityKind, 7, 7],
    [quantityKind, 1.5, undefined],
    [quantityKind, '2Mi', 2 ** 21],
    [quantityKind, '2MB', undefined],
    [quantityKind, true, undefined],
  ]
  for (const [kind, value, read] of cases) {
    t.strictSame(kind.fromYaml(value), read, `${kind.name}: ${JSON.stringify(value)}`)
  }
  t.equal(floatKind.fromText('2.5'), 2.5)
  t.equal(floatKind.fromText(' '), undefined)
  t.equal(floatKind.fromText('x'), undefined)
  for (const [text, read] of [
    ['+7', 7],
    ['-7', -7],
    ['0', 0],
    ['0x1F', 31],
    ['0X_1f', 31],
    ['-0b101', -5],
    ['0o17', 15],
    ['017', 15],
    ['1_000', 1000],
    ['0_17', 15],
    ['0x80000000', undefined],
    ['08', undefined],
    ['0x', undefined],
    ['1__0', undefined],
    ['1_', undefined],
    ['_1', undefined],
    ['1e3', undefined],
    [' 1', undefined],
    ['', undefined],
  ] as const) {
    t.equal(intKind.fromText(text), read, `as in Go: "${text}"`)
  }
  t.equal(verbosityKind.fromText('010'), 10, 'always decimal, as in klog')
  t.equal(verbosityKind.fromText('0x1'), undefined)
  t.equal(vmoduleKind.fromText('a=x'), undefined)
  t.same(gatesKind.fromText('A=true,,B=F'), { A: true, B: false })
  t.equal(gatesKind.fromText('A'), undefined)
  t.equal(gatesKind.fromText('=true'), undefined)
})

t.test('addresses and port ranges are checked at their limits', async (t) => {
  for (const [text, range] of [
    ['', 'any'],
    ['0', 'any'],
    ['0-0', 'any'],
    ['0-5', { from: 0, to: 5 }],
    ['80', { from: 80, to: 80 }],
    ['80-80', { from: 80, to: 80 }],
    ['80-79', undefined],
    ['65535', { from: 65535, to: 65535 }],
    ['65536', undefined],
    ['1-65536', undefined],
    ['65000+999', { from: 65000, to: 65535 }],
    ['a-b', undefined],
    ['1-', undefined],
  ] as const) {
    t.same(parsePortRange(text), range, text)
  }
  for (const [text, parsed] of [
    ['1.2.3.4:1', { host: '1.2.3.4', port: 1 }],
    ['1.2.3.4:65535', { host: '1.2.3.4', port: 65535 }],
    ['1.2.3.4:0', undefined],
    ['[::1]:80', { host: '::1', port: 80 }],
    ['::1:80', undefined],
    ['[1.2.3.4:80', undefined],
    [':80', undefined],
  ] as const) {
    t.same(parseHostPort(text), parsed, text)
  }
})

t.test('section 13: values at their limits are accepted', async (t) => {
  for (const body of [
    'iptables: {masqueradeBit: 0}\n',
    'iptables: {masqueradeBit: 31}\n',
    'mode: nftables\nnftables: {masqueradeBit: 0}\n',
    'iptables: {syncPeriod: 2s, minSyncPeriod: 2s}\n',
    'oomScoreAdj: -1000\n',
    'oomScoreAdj: 1000\n',
    'conntrack: {maxPerCore: 0, min: 0, udpTimeout: 0s}\n',
    'nodePortAddresses: [primary]\n',
    'nodePortAddresses: [primary, localhost, all, 10.0.0.0/8]\n',
    'nodePortAddresses: [0.0.0.0/0, "::/0"]\n',
    'userspace: {drainTimeout: 0s, workers: 256}\n',
  ]) {
    t.equal(problemOf([], body), 'accepted', body)
  }
  t.match(problemOf(['--iptables-sync-period=0s']), /--iptables-sync-period: "0s" must be greater/)
  t.match(problemOf(['--kube-api-burst=-1']), /--kube-api-burst: -1 must not be negative/)
  t.match(problemOf([], 'userspace: {workers: 257}\n'), /is not within 0\.\.256/)
  t.match(problemOf(['--proxy-mode=auto', '--iptables-sync-period=-1s']), /iptables-sync-period/)
})

t.test('flags that ask for an action are kept apart from the configuration', async (t) => {
  const none = { config: '', writeConfigTo: '', cleanup: false }
  t.same(parseFlags([]).actions, { ...none, healthzPort: undefined, metricsPort: undefined })
  t.same(
    parseFlags([
      ['config', 'a'],
      ['write-config-to', 'b'],
      ['cleanup', 'true'],
      ['healthz-port', '1'],
      ['metrics-port', '0'],
    ]).actions,
    { config: 'a', writeConfigTo: 'b', cleanup: true, healthzPort: 1, metricsPort: 0 },
  )
  t.match(problemOf(['--cleanup=perhaps']), /--cleanup: "perhaps" is not true or false/)
  t.same(normalizeArguments(['--cleanup', '--init-only', '--takeover']), [
    '--cleanup=true',
    '--init-only=true',
    '--takeover=true',
  ])
  t.same(normalizeArguments(['--config', '--cleanup']), ['--config', '--cleanup'])
})

t.test('every value keeps where it came from', async (t) => {
  const { origins } = load(['-v=2'], 'mode: ipvs\n')
  t.equal(originText(origins.get('mode')), 'kp.yaml:3')
  t.equal(originText(origins.get('logging.verbosity')), '--v')
  t.equal(originText(origins.get('clusterCIDR')), 'default')
  t.equal(
    originText(load(['--healthz-port=7']).origins.get('healthzBindAddress')),
    '--healthz-port',
  )
  const wrong = { name: 'x', text: '# comment\nkind: Pod\napiVersion: v1\n' }
  t.throws(() => loadConfig(parseFlags([]), wrong), { message: /x:2: kind is "Pod".*\nx:3: apiV/ })
})

t.test('a mistyped name gets a suggestion only if a known name is similar', async (t) => {
  const names = ['iptables.syncPeriod', 'mode', 'ipvs']
  t.equal(nearest('iptables.syncperiods', names), 'iptables.syncPeriod')
  t.equal(nearest('mod', names), 'mode')
  t.equal(nearest('ab', names), undefined)
  t.equal(nearest('completely.different', names), undefined)
  t.equal(quote('x'.repeat(100)).length, 78)
  t.equal(quote('x'.repeat(78)).length, 80)
})

t.test('section 19: gates have the defaults of Kubernetes', async (t) => {
  t.equal(isEnabled({}, 'AllowServiceExternalIPs'), true)
  t.equal(isEnabled({ AllowServiceExternalIPs: false }, 'AllowServiceExternalIPs'), false)
  t.same(
    ['ComponentFlagz', 'ComponentStatusz', 'KubeProxyIPVS', 'AllAlpha', 'Unknown'].map((gate) =>
      isEnabled({}, gate),
    ),
    [true, true, true, false, false],
  )
})

t.test('a gate for all of a stage sets those that nobody names', async (t) => {
  t.equal(isEnabled({ AllBeta: false }, 'ComponentFlagz'), false)
  t.equal(isEnabled({ AllBeta: false, ComponentFlagz: true }, 'ComponentFlagz'), true)
  t.equal(isEnabled({ AllAlpha: false, AllBeta: false }, 'KubeProxyIPVS'), true)
  t.equal(isEnabled({ AllAlpha: true }, 'LoggingAlphaOptions'), false, 'not here')
})

t.test('a gate without effect gets a warning', async (t) => {
  t.same(gateWarnings({ AllBeta: true, ComponentFlagz: false, NativeHistograms: false }), [])
  t.match(gateWarnings({ NativeHistograms: true, toString: true }), [
    /NativeHistograms is always off here; true has no effect/,
    /toString is unknown and has no effect/,
  ])
})

t.test('L11, L12, R08: warnings at the start depend on mode and IP families', async (t) => {
  const both = ['IPv4', 'IPv6'] as const
  const pods = '10.0.0.0/8,fd00::/8'
  const quiet = { mode: 'iptables', clusterCIDR: pods, nodePortAddresses: ['primary'] }
  const warnings = (values: object, families: readonly IpFamily[], mode: ModeName = 'iptables') =>
    startWarnings(configWith({ ...quiet, ...values }), mode, families).join('\n')
  t.equal(warnings({}, both), '')
  t.match(warnings({ mode: '' }, both), /^no mode is set.*1\.40.*set --proxy-mode/)
  t.equal(warnings({ mode: '' }, both, 'winuserspace'), '')
  t.match(warnings({ clusterCIDR: '' }, both), /^clusterCIDR is not set/, 'R08')
  t.equal(warnings({ clusterCIDR: '', detectLocalMode: 'NodeCIDR' }, both), '')
  t.match(warnings({ clusterCIDR: '', detectLocalMode: 'ClusterCIDR' }, both), /not set/)
  t.match(warnings({ clusterCIDR: '10.0.0.0/8' }, both), /^clusterCIDR has no IPv6 range/)
  t.equal(warnings({ clusterCIDR: '10.0.0.0/8' }, ['IPv4']), '')
  t.throws(() => warnings({ clusterCIDR: 'fd00::/8' }, ['IPv4']), {
    name: 'ConfigError',
    message: /^clusterCIDR: "fd00::\/8" has no IPv4 range, but this node has no other family/,
  })
  t.match(warnings({ nodePortAddresses: [] }, both), /^nodePortAddresses is not set/, 'L12')
  t.equal(warnings({ nodePortAddresses: [] }, both, 'nftables'), '', 'primary by default')
  t.equal(warnings({ nodePortAddresses: ['localhost', '10.0.0.0/8'] }, both), '')
  const folder = { nodePortAddresses: [], manifests: '/etc/services' }
  t.match(warnings(folder, both, 'nftables'), /^nodePortAddresses is not set, .* the first of its/)
  t.equal(warnings({ ...folder, nodePortAddresses: ['primary'] }, both, 'nftables'), '')
  t.match(
    warnings({ nodePortAddresses: ['10.0.0.0/8'] }, both),
    /^nodePortAddresses has no IPv6 range, so node ports answer on all IPv6 addresses$/,
    'L07',
  )
  t.match(warnings({ bindAddress: 'fd00::1' }, ['IPv4']), /^bindAddress fd00::1 is IPv6/)
})

t.test('section 12: every flag of kube-proxy 1.36 and 1.25 is accepted', async (t) => {
  const flags =
    `config= write-config-to= cleanup init-only feature-gates=AllAlpha=false kubeconfig=k
    master=m kube-api-content-type=json kube-api-burst=1 kube-api-qps=1.5 hostname-override=h
    bind-address=:: healthz-bind-address=1.2.3.4:5 metrics-bind-address=1.2.3.4 profiling
    bind-address-hard-fail show-hidden-metrics-for-version=1.35 proxy-mode=ipvs
    iptables-masquerade-bit=1 masquerade-all iptables-localhost-nodeports=false
    iptables-sync-period=1m iptables-min-sync-period=0s ipvs-sync-period=1m
    ipvs-min-sync-period=1s ipvs-scheduler=sh ipvs-exclude-cidrs=10.0.0.0/8 ipvs-strict-arp
    ipvs-tcp-timeout=1s ipvs-tcpfin-timeout=1s ipvs-udp-timeout=1s
    detect-local-mode=BridgeInterface pod-bridge-interface=b pod-interface-name-prefix=p
    cluster-cidr=10.0.0.0/8 nodeport-addresses=primary oom-score-adj=0 conntrack-max-per-core=0
    conntrack-min=0 conntrack-tcp-timeout-established=0s conntrack-tcp-timeout-close-wait=0s
    conntrack-tcp-be-liberal conntrack-udp-timeout=1s conntrack-udp-timeout-stream=1s
    config-sync-period=1m healthz-port=1 metrics-port=1 logging-format=text
    log-flush-frequency=1s v=1 vmodule=a=1 log-text-split-stream log-text-info-buffer-size=1Ki
    log-json-split-stream log-json-info-buffer-size=1Ki boot-id-file=x machine-id-file=x
    windows-service source-vip=1.2.3.4 network-name=n enable-dsr root-hnsendpoint-name=r
    forward-healthcheck-vip udp-timeout=1s proxy-port-range=1-2`.split(/\s+/)
  const known = new Set([
    ...keyEntries.flatMap(([, key]) => key.flags),
    ...actionFlags.map(({ flag }) => flag),
    ...Object.keys(retiredFlags),
  ])
  for (const flag of flags) t.ok(known.has(flag.split('=')[0]!), flag)
  t.equal(problemOf(flags.map((flag) => `--${flag}`)), 'accepted')
})

t.test('kernelspace is refused with what this program has instead', (t) => {
  const advice =
    /"kernelspace" is not one of .*: this program has no kernelspace mode.*winuserspace/
  t.match(problemOf(['--proxy-mode=kernelspace']), advice)
  t.match(problemOf([], 'mode: kernelspace\n'), advice)
  t.notMatch(problemOf(['--proxy-mode=constructor']), /: this|function/)
  t.equal(load(['--windows-interface=Ethernet 2']).config.winuserspace.interface, 'Ethernet 2')
  t.end()
})
