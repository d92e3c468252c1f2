import t from 'tap'
import { explainConnection, parseObjects, renderRules } from '../../lib/index.js'
import { readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { runCommand } from '../support/run-command.js'

const main = fileURLToPath(new URL('../../lib/cli/main.js', import.meta.url))
const examples = fileURLToPath(new URL('../../../examples/services/', import.meta.url))
const modes = ['userspace', 'iptables', 'ipvs', 'nftables'] as const
const objects = readdirSync(examples)
  .sort()
  .flatMap((file) => parseObjects(readFileSync(examples + file, 'utf8'), file))
const node = ['--manifests', examples, '--addresses', '192.0.2.1,2001:db8::1,127.0.0.1,::1']

async function command(...args: string[]): Promise<string> {
  return (await runCommand(process.execPath, [main, ...args, ...node])).stdout
}

t.test('the library renders the same text as `render`, in every mode and family', async (t) => {
  for (const mode of modes) {
    const printed = await command('render', '--mode', mode, '--family', 'both')
    const { text, warnings } = renderRules({ mode, objects, families: ['IPv4', 'IPv6'] })
    t.equal(text, printed, mode)
    t.same(warnings, [])
  }
})

t.test('the library explains as `explain` does, as text and as data', async (t) => {
  for (const mode of modes) {
    const asked = ['explain', 'web', '--mode', mode, '--from', 'outside', '--node', 'node-1']
    const { text, warnings, ...data } = explainConnection({
      ...{ mode, objects, to: 'web', from: 'outside', families: ['IPv4', 'IPv6'] },
    })
    t.equal(text, await command(...asked), mode)
    const plain: unknown = JSON.parse(JSON.stringify(data))
    t.same(plain, JSON.parse(await command(...asked, '--json')), mode)
    t.same(warnings, [])
  }
})

t.test('an address where no node port answers is not called one of the Service', (t) => {
  const spec = { type: 'NodePort', clusterIP: '10.96.0.7', ports: [{ port: 80, nodePort: 30080 }] }
  const web = { kind: 'Service', apiVersion: 'v1', metadata: { name: 'web' }, spec }
  const nodeAddresses = ['192.0.2.1', '192.0.2.2', '127.0.0.1']
  const ask = (mode: 'nftables' | 'iptables', to: string) =>
    explainConnection({ mode, objects: [web], nodeAddresses, to, from: 'outside' })
  t.equal(ask('nftables', '192.0.2.1:30080').service, 'default/web')
  const other = ask('nftables', '192.0.2.2:30080')
  t.match(other, { service: undefined, text: /no address of a Service.*without a listener there/s })
  for (const to of ['192.0.2.2:30080', '127.0.0.9:30080']) {
    t.equal(ask('iptables', to).service, 'default/web', to)
  }
  t.end()
})

t.test('a port is asked for by its name, or else by its number', (t) => {
  const ports = [
    { name: 'http', port: 80 },
    { name: '443', port: 90 },
    { name: 'https', port: 443 },
  ]
  const spec = { clusterIP: '10.96.0.7', ports }
  const web = { kind: 'Service', apiVersion: 'v1', metadata: { name: 'web' }, spec }
  const ask = (to: string) => explainConnection({ mode: 'nftables', objects: [web], to }).service
  t.equal(ask('web:https'), 'default/web:https')
  t.equal(ask('default/web:80'), 'default/web:http')
  t.equal(ask('web:443'), 'default/web:443', 'a name counts more than a number')
  t.equal(ask('default/web:https/TCP'), 'default/web:https', 'as the log names it')
  t.throws(() => ask('web:81'), /there is no Service port "web:81"/)
  t.end()
})

t.test('userspace mode: an endpoint that is an address of a Service is not used', (t) => {
  const spec = { clusterIP: '10.96.0.7', externalIPs: ['192.0.2.1'], ports: [{ port: 8080 }] }
  const own = { kind: 'Service', apiVersion: 'v1', metadata: { name: 'own' }, spec }
  const slice = {
    ...{ apiVersion: 'discovery.k8s.io/v1', kind: 'EndpointSlice', addressType: 'IPv4' },
    metadata: { name: 'own-1', labels: { 'kubernetes.io/service-name': 'own' } },
    ...{ ports: [{ name: '', port: 8080 }], endpoints: [{ addresses: ['192.0.2.1'] }] },
  }
  const ask = (mode: 'userspace' | 'iptables') =>
    explainConnection({ mode, objects: [own, slice], to: 'own' })
  t.match(ask('userspace'), {
    ways: [{ end: 'rejected' }],
    endpoints: [{ isUsed: false, reason: /lead back to this proxy/ }],
  })
  t.match(ask('iptables'), { endpoints: [{ isUsed: true }] }, 'the kernel translates once')
  t.end()
})

const addressesOf = (options: Parameters<typeof renderRules>[0]) =>
  new Set(renderRules(options).text.match(/element ip kube-proxy nodeport-ips \{ ([\d.]+)/g))

t.test('the addresses of the node are the given ones, or those of its Node object', (t) => {
  const status = { addresses: [{ type: 'InternalIP', address: '192.0.2.77' }] }
  const own = { apiVersion: 'v1', kind: 'Node', metadata: { name: 'worker' }, status }
  const options = { mode: 'nftables', objects: [...objects, own], nodeName: 'worker' } as const
  t.match([...addressesOf(options)].join(), /\{ 192\.0\.2\.77$/)
  const given = addressesOf({ ...options, objects, nodeAddresses: ['192.0.2.88'] })
  t.match([...given].join(), /\{ 192\.0\.2\.88$/)
  t.end()
})

t.test('the library uses the configuration, and reports its errors', (t) => {
  const mark = (configuration?: Record<string, unknown>) =>
    renderRules({ mode: 'iptables', objects, ...(configuration ? { configuration } : {}) }).text
  t.match(mark({ iptables: { masqueradeBit: 3 } }), /0x8\/0x8|0x00000008/)
  t.match(mark(), '10.244.0.0/16')
  t.notMatch(mark({ clusterCIDR: '10.200.0.0/16' }), '10.244.0.0/16')
  t.throws(() => mark({ clusterCidr: 'x' }), {
    name: 'ConfigError',
    message: /clusterCidr: .*unknown key; did you mean clusterCIDR\?/,
  })
  const local = {
    mode: 'userspace',
    configuration: { bindAddress: '127.0.0.1', userspace: { portals: 'iptables' } },
  } as const
  t.throws(() => renderRules({ ...local, objects }), /userspace mode cannot proxy on it/)
  const broken = [{ kind: 'Service' }, { ...(objects[0] as object), spec: { clusterIP: 'x' } }]
  t.match(renderRules({ mode: 'ipvs', objects: broken }).warnings, [
    /^objects\[0\]: apiVersion or kind is missing/,
    /is skipped: .*"x" is not an IP address/,
  ])
  t.throws(() => parseObjects('kind: [\n', 'web.yaml'), { message: /^web\.yaml:\d+: / })
  t.throws(() => explainConnection({ mode: 'ipvs', objects, to: 'nobody' }), {
    name: 'ConfigError',
    message: /there is no Service port "nobody"; there are: default\//,
  })
  t.end()
})

t.test('a wrong option is a ConfigError that says what the option takes', (t) => {
  const rendering = { mode: 'nftables', objects }
  const wrong: [object, RegExp][] = [
    [{ objects }, /^option mode is missing$/],
    [{ mode: undefined, objects }, /^option mode takes one of userspace, /],
    [{ ...rendering, mode: 'auto' }, /^option mode takes one of .*ebpf, not "auto"$/],
    [{ ...rendering, mode: 'toString' }, /^option mode takes one of/],
    [{ mode: 'nftables' }, /^option objects is missing$/],
    [{ ...rendering, objects: {} }, /^option objects takes a list/],
    [{ ...rendering, families: ['ipv5'] }, /^option families takes a list of IPv4, IPv6$/],
    [{ ...rendering, nodeName: 5 }, /^option nodeName takes a name$/],
    [{ ...rendering, nodeAddresses: ['web'] }, /^option nodeAddresses takes a list of IP addr/],
    [{ ...rendering, configuration: [] }, /^option configuration takes an object$/],
    [{ ...rendering, nodename: 'x' }, /^option "nodename" is unknown; there are: mode, /],
    [{ ...rendering, constructor: 'x' }, /^option "constructor" is unknown/],
  ]
  for (const [options, message] of wrong) {
    t.throws(() => renderRules(options as never), { name: 'ConfigError', message })
  }
  const asking = { ...rendering, to: 'web' }
  for (const [options, message] of [
    [rendering, /^option to is missing$/],
    [{ ...asking, from: 7 }, /^option from takes a text$/],
    [{ ...asking, protocol: 'tcp' }, /^option protocol takes one of TCP, UDP, SCTP, not "tcp"$/],
  ] as [object, RegExp][]) {
    t.throws(() => explainConnection(options as never), { name: 'ConfigError', message })
  }
  t.ok(renderRules({ mode: 'nftables', objects, nodeName: undefined } as never).text)
  t.end()
})
