import { fileURLToPath } from 'node:url'
import t from 'tap'
import { configWith } from '../../../lib/config/load.js'
import { explainRules } from '../../../lib/page/words/explain-rules.js'
import { render } from '../../../lib/cli/render.js'
import { nobodyKnown, type LineWords } from '../../../lib/page/words/words.js'
import type { ModeName } from '../../../lib/modes/registry.js'

const examples = fileURLToPath(new URL('../../../../examples/services', import.meta.url))
const modes: readonly ModeName[] = ['userspace', 'iptables', 'nftables', 'ipvs']

async function linesOf(mode: ModeName): Promise<readonly string[]> {
  const { text } = await render({
    mode,
    manifests: examples,
    families: ['IPv4', 'IPv6'],
    nodeName: 'node-1',
    config: configWith({ clusterCIDR: '10.244.0.0/16,fd00:10:244::/48' }),
    addresses: ['192.0.2.2', '127.0.0.1', '2001:db8::2', '::1'],
  })
  return text.split('\n').filter((line) => line !== '')
}

for (const mode of modes) {
  t.test(`every line that ${mode} mode makes of the examples is explained`, async (t) => {
    const lines = await linesOf(mode)
    t.ok(lines.length > 50, 'there are lines to explain')
    const explained = explainRules(mode, lines, nobodyKnown)
    const missing = lines.filter((line, index) => {
      const found = explained[index]
      return !found || found.words === '' || found.object === ''
    })
    t.same(missing, [])
    const odd = explained.filter((each) =>
      /undefined|NaN|a set of its own|a chain of its own/.test(`${each?.words}`),
    )
    t.same(odd, [], 'nothing is explained by half')
  })
}

/** What a line says, in a ruleset of its own. */
function words(mode: ModeName, line: string, pod = ''): LineWords | undefined {
  return explainRules(mode, [line], { podAt: (ip) => (ip === '10.244.1.21' ? pod : undefined) })[0]
}

t.test('lines say who is meant, what happens to them and which object is the reason', async (t) => {
  const share =
    '-A KUBE-SVC-CDGGSHYLG3RE2FKL -p tcp -m comment --comment "default/web:http -> 10.244.1.21:8080" ' +
    '-m statistic --mode random --probability 0.3333333333 -j DNAT --to-destination 10.244.1.21:8080'
  t.same(words('iptables', share, 'web-abc'), {
    words:
      'TCP, by chance 33.3 % of those that come this far: the destination becomes pod web-abc at 10.244.1.21:8080',
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
      'nftables',
      'add rule ip kube-proxy service-SUSTUHLJ-default/web/tcp/http meta l4proto tcp dnat ip to numgen random mod 2 map { 0 : 10.244.1.21 . 8080, 1 : 10.244.2.24 . 8080 }',
      'web-abc',
    ),
    {
      words:
        /one of 2 endpoints by chance \(50 % each\): pod web-abc at 10\.244\.1\.21:8080, endpoint 10\.244\.2\.24:8080/,
      object: 'Service default/web, port http: its EndpointSlices',
    },
  )
  const nftables = (line: string) => words('nftables', `add ${line}`)
  const goTo = '{ 10.96.0.10 . tcp . 80 comment "default/web:http" : goto tcp-services }'
  t.match(nftables(`element ip kube-proxy service-ips ${goTo}`), {
    words:
      /^10\.96\.0\.10 \. tcp \. 80 stands.*: go to chain tcp-services, Services that have their ClusterIP alone/,
    object: /^Service default\/web, port http: spec\.clusterIP/,
  })
  for (const line of ['chain ip kube-proxy tcp-services', 'set ip kube-proxy tcp-up-to-16 { }']) {
    t.equal(nftables(line)?.object, 'every Service that has its ClusterIP alone')
  }
  t.match(nftables('chain ip kube-proxy services')?.object, /mode itself, whatever Services/)
  const bySize = 'ip daddr . th dport @tcp-up-to-16 goto tcp-up-to-16'
  t.match(nftables(`rule ip kube-proxy tcp-services ${bySize}`), {
    words:
      'destination and port in tcp-up-to-16 (Services of more than 4 endpoints and up to 16), ' +
      'go to chain tcp-up-to-16: one endpoint by chance, for every Service of up to 16',
  })
  t.match(nftables('element ip kube-proxy tcp-up-to-16 { 10.96.0.10 . 80 }'), {
    words:
      '10.96.0.10 . 80 stands in tcp-up-to-16 (Services of more than 4 endpoints and up to 16)',
    object: 'every EndpointSlice of Services with a ClusterIP only',
  })
  t.match(nftables('rule ip kube-proxy tcp-up-to-4 jump tcp-draw-4'), {
    words: /who draws an empty one draws again/,
  })
  const drawn = 'dnat ip to ip daddr . tcp dport . numgen random mod'
  t.match(nftables(`rule ip kube-proxy tcp-draw-4 ${drawn} 4 map @tcp-endpoints`), {
    words: /one of 4 places by chance/,
  })
  t.match(nftables(`rule ip kube-proxy tcp-up-to-4 ${drawn} 1 map @tcp-endpoints`), {
    words: /the first endpoint that map tcp-endpoints has/,
  })
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

t.test('a rule with a part that nobody knows gets no words rather than wrong ones', async (t) => {
  t.equal(words('nftables', 'add rule ip kube-proxy services quota over 25 mbytes drop'), undefined)
  t.equal(words('iptables', '-A KUBE-SERVICES --quota 7 -j DROP'), undefined)
})
