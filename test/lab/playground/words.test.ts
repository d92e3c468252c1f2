import t from 'tap'
import { fileURLToPath } from 'node:url'
import { configWith } from '../../../lib/config/load.js'
import { linesOf, explainRules } from '../../../lib/page/rule-lines.js'
import { modeLoaders } from '../../../lib/modes/registry.js'
import { readManifestStates } from '../../../lib/cli/node-states.js'
import type { LineWords } from '../../../lib/page/words/words.js'
import type { Command, NftSet, Statement } from '../../../lib/kernel/nftables/model.js'
import type { ModeName } from '../../../lib/config/config.js'
import type { PlanLine } from '../../../lib/modes/mode.js'

const examples = fileURLToPath(new URL('../../../../examples/services', import.meta.url))
const modes: readonly ModeName[] = ['userspace', 'iptables', 'nftables', 'ipvs', 'ebpf']

async function linesOfExamples(mode: ModeName): Promise<readonly PlanLine[]> {
  const config = configWith({ clusterCIDR: '10.244.0.0/16,fd00:10:244::/48' })
  const families = ['IPv4', 'IPv6'] as const
  const { states } = await readManifestStates({
    ...{ mode, manifests: examples, families, nodeName: 'node-1', config },
    addresses: ['192.0.2.2', '127.0.0.1', '2001:db8::2', '::1'],
  })
  const planner = (await modeLoaders[mode]()).planner(config)
  const lines = states.flatMap((state) => linesOf(planner, planner.plan(state)))
  return lines.filter(({ text }) => text !== '')
}

for (const mode of modes) {
  t.test(`every line that ${mode} mode makes of the examples is explained`, async (t) => {
    const lines = await linesOfExamples(mode)
    t.ok(lines.length > 50, 'there are lines to explain')
    const explained = explainRules(mode, lines, { podAt: () => undefined })
    const missing = lines.filter((line, index) => {
      const found = explained[index]
      return !found || found.words === '' || found.object === ''
    })
    t.same(
      missing.map(({ text }) => text),
      [],
    )
    const odd = explained.filter((each) =>
      /undefined|NaN|a set of its own|a chain of its own/.test(`${each?.words}`),
    )
    t.same(odd, [], 'nothing is explained by half')
  })
}

/** The words for a line, which is the whole ruleset. */
function words(mode: ModeName, line: string, pod = ''): LineWords | undefined {
  return explainRules(mode, [{ text: line }], {
    podAt: (ip) => (ip === '10.244.1.21' ? pod : undefined),
  })[0]
}

t.test('lines name the packets, what happens to them, and the reason', async (t) => {
  const share =
    '-A KUBE-SVC-CDGGSHYLG3RE2FKL -p tcp -m comment --comment "default/web:http -> 10.244.1.21:8080" ' +
    '-m statistic --mode random --probability 0.3333333333 -j DNAT --to-destination 10.244.1.21:8080'
  t.same(words('iptables', share, 'web-abc'), {
    words:
      'TCP, by chance 33.3 % of the packets that reach this rule: the destination becomes pod web-abc at 10.244.1.21:8080',
    object: 'Service default/web, port http: 10.244.1.21:8080 in its EndpointSlice',
  })
  t.match(
    words(
      'iptables',
      '-A KUBE-FW-YBRHFGZD3TRL7I6I -s 198.51.100.0/24 -m comment --comment "default/shop:https loadbalancer IP" -j KUBE-EXT-YBRHFGZD3TRL7I6I',
    ),
    {
      words: /^from 198\.51\.100\.0\/24: go to chain KUBE-EXT/,
      object: /spec\.loadBalancerSourceRanges$/,
    },
  )
  t.match(
    words(
      'userspace',
      'listen TCP 0.0.0.0:PROXY-PORT for default/web:http (cluster, affinity 600 s): 10.244.1.21:8080 10.244.2.24:8080',
      'web-abc',
    ),
    { words: /pod web-abc at 10\.244\.1\.21:8080, then endpoint .* in turn; .* 600 s/ },
  )
  t.match(words('ipvs', '-A -t 10.96.0.10:80 -s lc'), {
    words: /fewest connections/,
    object: 'the Service at 10.96.0.10:80',
  })
})

t.test('nftables: lines name the packets, what happens to them, and the reason', async (t) => {
  const words = (...commands: Command[]) =>
    explainRules('nftables', [{ text: '', commands }], {
      podAt: (ip) => (ip === '10.244.1.21' ? 'web-abc' : undefined),
    })[0]
  const rule = (chain: string, ...statements: Statement[]) =>
    words({ do: 'add-rule', chain, rule: { statements } })
  const targets = [
    { ip: '10.244.1.21', port: 8080 },
    { ip: '10.244.2.24', port: 8080 },
  ]
  const service = 'service-SUSTUHLJ-default/web/tcp/http'
  const tcp = { kind: 'protocol', protocol: 'tcp' } as const
  t.same(rule(service, tcp, { kind: 'dnat', targets }), {
    words:
      'TCP, one of 2 endpoints by chance (50 % each): pod web-abc at 10.244.1.21:8080, endpoint 10.244.2.24:8080',
    object: 'Service default/web, port http: its EndpointSlices',
  })
  const serviceIps: NftSet = {
    name: 'service-ips',
    holds: 'verdicts',
    key: ['address', 'inet_proto', 'inet_service'],
  }
  const element = {
    ...{ set: serviceIps, key: ['10.96.0.10', 'tcp', 80], comment: 'default/web:http' },
    verdict: { to: 'goto', chain: 'tcp-services' },
  } as const
  t.match(words({ do: 'add-element', element }), {
    words:
      /^10\.96\.0\.10 \. tcp \. 80 is in.*: go to chain tcp-services, Services with only a ClusterIP/,
    object: /^Service default\/web, port http: spec\.clusterIP/,
  })
  const bySize = {
    name: 'tcp-up-to-16',
    key: ['address', 'inet_service'],
    holds: 'keys',
  } as const
  const shared = words({ do: 'add-chain', chain: { name: 'tcp-services', rules: [] } })
  for (const each of [shared, words({ do: 'add-set', set: bySize })]) {
    t.equal(each?.object, 'every Service with only a ClusterIP')
  }
  const services = words({ do: 'add-chain', chain: { name: 'services', rules: [] } })
  t.match(services?.object, /mode itself/)
  const upTo16 = { kind: 'verdict', verdict: { to: 'goto', chain: 'tcp-up-to-16' } } as const
  const hasSize = { kind: 'member', fields: ['daddr', 'dport'], set: 'tcp-up-to-16' } as const
  t.match(rule('tcp-services', hasSize, upTo16), {
    words:
      'destination and port in tcp-up-to-16 (Services of more than 4 endpoints and up to 16), ' +
      'go to chain tcp-up-to-16: one endpoint by chance, for every Service of up to 16',
  })
  t.match(words({ do: 'add-element', element: { set: bySize, key: ['10.96.0.10', 80] } }), {
    words: '10.96.0.10 . 80 is in tcp-up-to-16 (Services of more than 4 endpoints and up to 16)',
    object: 'every EndpointSlice of Services with only a ClusterIP',
  })
  const draw = { kind: 'verdict', verdict: { to: 'jump', chain: 'tcp-draw-4' } } as const
  t.match(rule('tcp-up-to-4', draw), { words: /after an empty one it draws again/ })
  const drawn = { kind: 'dnat-by-map', protocol: 'tcp', map: 'tcp-endpoints' } as const
  t.match(rule('tcp-draw-4', { ...drawn, choices: 4 }), { words: /one of 4 places by chance/ })
  t.match(rule('tcp-up-to-4', { ...drawn, choices: 1 }), {
    words: /the first endpoint that map tcp-endpoints has/,
  })
})

t.test('a share of whole percents has no decimals', async (t) => {
  const rule = '-A KUBE-SVC-A -m statistic --mode random --probability 0.0700000000 -j KUBE-SEP-A'
  t.match(words('iptables', rule)?.words, 'by chance 7 % of the packets')
})

t.test('a rule with an unknown part gets no words instead of wrong ones', async (t) => {
  t.equal(words('nftables', 'add rule ip kube-proxy services drop'), undefined, 'text alone')
  t.equal(words('iptables', '-A KUBE-SERVICES --quota 7 -j DROP'), undefined)
})
