import t from 'tap'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { commandThread } from '../support/command-thread.js'
import { runCommand } from '../support/run-command.js'
import { withoutPrograms, withoutProgramsSkip } from '../support/without-programs.js'
import { program } from '../support/program.js'

const examples = fileURLToPath(new URL('../../../examples/services', import.meta.url))

const kubeProxy = commandThread()

async function explain(...args: string[]) {
  const node = ['--manifests', examples, '--addresses', '192.0.2.1,127.0.0.1', '--node', 'node-1']
  return kubeProxy('explain', ...args, ...node)
}

t.test(
  'explain shows the rules a packet meets, the endpoints that may answer, and the sender they see',
  async (t) => {
    const { stdout, code } = await explain('web', '--mode', 'iptables', '--from', 'outside')
    t.equal(code, 0)
    t.match(stdout, /nat PREROUTING > KUBE-SERVICES\n +-d 10\.96\.0\.10\/32 .* -j KUBE-SVC-/)
    t.match(stdout, / 50\.0 % {2}sent to 10\.244\.1\.11:8080, which sees an address of this node/)
    t.match(stdout, /-j MARK --or-mark 0x4000\n +=> .*marked for a later rule/)
    t.match(stdout, /-j MARK --xor-mark 0x4000\n +=> .*the mark is removed/)
    t.match(stdout, /used {2}10\.244\.1\.12:8080 {2}ready, on this node/)
    const fromPod = await explain('web', '--mode', 'nftables')
    t.match(fromPod.stdout, /element service-ips \{ 10\.96\.0\.10 \. tcp \. 80 : goto service-/)
    t.match(fromPod.stdout, /sent to 10\.244\.1\.11:8080, which sees the sender/)
    const listener =
      /DNAT --to-destination \S+:PROXY-PORT\n +=> .*: handed to a listener of this node, port PROXY-PORT\n/
    t.match((await explain('web', '--mode', 'userspace')).stdout, listener)
  },
)

t.test('explain tells of a connection that is translated at the socket', async (t) => {
  const { stdout } = await explain('web', '--mode', 'ebpf')
  t.match(stdout, /in ebpf mode:\n\nBy chance or in turn:\n/, 'nothing comes before')
  t.match(stdout, /connect\(\)\n +frontend 10\.96\.0\.10:80 TCP -> /)
  t.match(stdout, /translated at connect\(\): the socket goes to 10\.244\.1\.11:8080, one of 2/)
  const outside = await explain('web', '--mode', 'ebpf', '--from', 'outside')
  t.match(outside.stdout, /element service-ips/, 'other machines take the packet path')
  t.notMatch(outside.stdout, /connect\(\)/)
})

t.test('of thousands of Services a wrong name tells the few that are like it', async (t) => {
  const items = Array.from({ length: 2000 }, (_, index) => ({
    ...{ apiVersion: 'v1', kind: 'Service' },
    metadata: index === 1000 ? { name: 'web', namespace: 'shop' } : { name: `a${index}` },
    spec: { clusterIP: `10.96.${index >> 8}.${index & 255}`, ports: [{ port: 80 }] },
  }))
  const file = 'all.json'
  const folder = t.testdir({ [file]: JSON.stringify({ kind: 'List', apiVersion: 'v1', items }) })
  const args = ['explain', 'web', '--manifests', folder]
  const { stderr } = await kubeProxy(...args)
  t.match(stderr, /there are: shop\/web, (default\/a\d+,? ){19}and 1980 more\n$/)
  t.ok(stderr.length < 1000, `${stderr.length} characters`)
})

t.test('explain warns about the Service it was asked about, not about others', async (t) => {
  const service = (name: string, clusterIP: string) => ({
    ...{ apiVersion: 'v1', kind: 'Service' },
    metadata: { name, annotations: { 'kube-proxy-ts/balance': 'least-connections' } },
    spec: { clusterIP, ports: [{ port: 80 }] },
  })
  const slice = (name: string, address: string) => ({
    ...{ apiVersion: 'discovery.k8s.io/v1', kind: 'EndpointSlice', addressType: 'IPv4' },
    metadata: {
      name: `${name}-1`,
      labels: { 'kubernetes.io/service-name': name },
      annotations: { 'kube-proxy-ts/weight': 'heavy' },
    },
    ports: [{ name: '', port: 80 }],
    endpoints: [{ addresses: [address] }],
  })
  const malformed = { ...slice('web', '10.244.1.4'), addressType: 'IPX' }
  const folder = t.testdir({
    'web.json': JSON.stringify(service('web', '10.96.0.79')),
    'web-1.json': JSON.stringify(slice('web', '10.244.1.2')),
    'other.json': JSON.stringify(service('other', '10.96.0.80')),
    'other-1.json': JSON.stringify(slice('other', '10.244.1.3')),
    'odd.json': JSON.stringify({ ...malformed, metadata: { ...malformed.metadata, name: 'odd' } }),
  })
  const warned = async (target: string) => {
    const of = ['--manifests', folder, '--mode', 'nftables', '--json']
    const argv = ['explain', target, ...of]
    const { stderr } = await kubeProxy(...argv)
    return stderr.match(/^(?:Service|EndpointSlice) [^ :]+/gm)?.sort()
  }
  const odd = 'EndpointSlice default/odd'
  const about = (name: string) => [`EndpointSlice default/${name}-1`, `Service default/${name}`]
  t.same(await warned('web'), [odd, ...about('web')].sort())
  t.same(await warned('10.96.0.80:80'), [odd, ...about('other')].sort())
  const all = [odd, ...about('web'), ...about('other')].sort()
  t.same(await warned('gone'), all, 'perhaps they say why there is no such Service')
  t.same(await warned('10.96.0.81:80'), all)
})

t.test('no text of a manifest moves the cursor or turns text around', async (t) => {
  const hostile = 'web\u001b]0;owned\u0007\u009b31m\u202e'
  const service = {
    ...{ apiVersion: 'v1', kind: 'Service', metadata: { name: hostile } },
    spec: { clusterIP: hostile, ports: [{ port: 80 }] },
  }
  const folder = t.testdir({ 'web.json': JSON.stringify(service) })
  for (const command of [['explain', 'web'], ['explain', '10.96.0.9:80'], ['render']]) {
    const of = ['--manifests', folder, '--mode', 'nftables']
    const { stderr } = await kubeProxy(...command, ...of)
    t.match(stderr, String.raw`Service default/web\u001b]0;owned\u0007`, command.join(' '))
    t.notMatch(stderr, /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u202e]/)
  }
})

t.test('the port of a Service without a port is its first TCP port', async (t) => {
  const spec = {
    clusterIP: '10.96.0.78',
    ports: [
      { name: 'dns', port: 53, protocol: 'UDP' },
      { name: 'zoo', port: 80 },
      { name: 'admin', port: 9000 },
      { name: 'zoo-u', port: 80, protocol: 'UDP' },
      { name: 'admin-u', port: 9000, protocol: 'UDP' },
    ],
  }
  const service = { apiVersion: 'v1', kind: 'Service', metadata: { name: 'many' }, spec }
  const folder = t.testdir({ 'many.json': JSON.stringify(service) })
  const asked = async (...args: string[]) => {
    const argv = ['explain', ...args, '--manifests', folder, '--mode', 'nftables']
    return (await kubeProxy(...argv)).stdout
  }
  t.match(await asked('many'), /10\.96\.0\.78:80, an address of default\/many:zoo/)
  t.match(await asked('many', '--protocol', 'UDP'), /:53, an address of default\/many:dns/)
  t.match(await asked('many:admin'), /:9000, an address of default\/many:admin/)
  t.match(await asked('10.96.0.78:80'), /^TCP .* an address of default\/many:zoo,/, 'its address')
  t.match(await asked('10.96.0.78:9000'), /^TCP .* an address of default\/many:admin,/)
})

t.test('a Service of both families is asked in that of the sender', async (t) => {
  const spec = { clusterIPs: ['10.96.0.82', 'fd96::82'], ports: [{ port: 80 }] }
  const service = { apiVersion: 'v1', kind: 'Service', metadata: { name: 'dual' }, spec }
  const folder = t.testdir({ 'dual.json': JSON.stringify(service) })
  const from = async (sender: string) => {
    const of = ['--manifests', folder, '--mode', 'nftables', '--from', sender]
    return (await kubeProxy('explain', 'dual', ...of)).stdout
  }
  t.match(await from('fd44::5'), /^TCP from a client outside \(fd44::5\) to \[fd96::82\]:80/)
  t.match(await from('192.0.2.5'), / to 10\.96\.0\.82:80/)
  t.match(await from('outside'), / to 10\.96\.0\.82:80/)
})

t.test(
  'of several Services at an address explain names the one that the rules choose',
  async (t) => {
    const [here, shared] = ['192.0.2.1', '198.51.100.9']
    const at = (name: string, clusterIP: string, spec: object): [string, string] => [
      `${name}.json`,
      JSON.stringify({
        ...{ apiVersion: 'v1', kind: 'Service', metadata: { name } },
        spec: { clusterIP, ...spec },
      }),
    ]
    const nodePort = { type: 'NodePort', ports: [{ port: 80, nodePort: 30080 }] }
    const other = { ports: [{ port: 30080 }], externalIPs: [here] }
    const both = { ports: [{ port: 80 }], externalIPs: [shared] }
    const folder = t.testdir(
      Object.fromEntries([
        ...[at('a-node-port', '10.96.0.80', nodePort), at('own', '10.96.0.81', other)],
        // A state does not keep the order of names.
        ...Array.from({ length: 9 }, (_, index) => at(`s-${index}`, `10.96.1.${index}`, both)),
      ]),
    )
    for (const mode of ['userspace', 'iptables', 'nftables', 'ebpf']) {
      const of = ['--manifests', folder, '--mode', mode, '--addresses', here, '--from', 'outside']
      const ask = async (target: string) => (await kubeProxy('explain', target, ...of)).stdout
      t.match(await ask(`${here}:30080`), /an address of default\/own, [^]*default\/own/, mode)
      t.match(await ask(`${shared}:80`), /an address of default\/s-0, [^]*default\/s-0/, mode)
    }
  },
)

t.test('of several Services at an address one with endpoints gets the connections', async (t) => {
  const manifest = (kind: string, apiVersion: string, name: string, more: object) =>
    JSON.stringify({ apiVersion, kind, metadata: { name, labels }, ...more })
  const labels = { 'kubernetes.io/service-name': 'busy' }
  const service = (name: string, clusterIP: string) =>
    manifest('Service', 'v1', name, {
      spec: { clusterIP, ports: [{ port: 80 }], externalIPs: ['198.51.100.9'] },
    })
  const folder = t.testdir({
    'a.json': service('a-idle', '10.96.0.80'),
    'b.json': service('busy', '10.96.0.81'),
    'slice.json': manifest('EndpointSlice', 'discovery.k8s.io/v1', 'busy-1', {
      ...{ addressType: 'IPv4', ports: [{ name: '', port: 8080 }] },
      endpoints: [{ addresses: ['10.244.1.7'] }],
    }),
  })
  for (const mode of ['userspace', 'iptables', 'ipvs', 'nftables', 'ebpf']) {
    for (const from of ['outside', 'node']) {
      const of = ['--manifests', folder, '--mode', mode, '--from', from]
      const asked = ['explain', '198.51.100.9:80', ...of, '--addresses', '192.0.2.1']
      const { stdout } = await kubeProxy(...asked)
      t.match(stdout, /an address of default\/busy, [^]*10\.244\.1\.7/, `${mode} ${from}`)
      t.notMatch(stdout, /refused|idle/)
    }
  }
})

t.test('a port that does not exist is no target', async (t) => {
  const argv = ['explain', '--manifests', 'examples/services', '--mode', 'nftables']
  for (const port of ['0', '65536']) {
    const { code, stderr } = await kubeProxy(...argv, `10.96.0.10:${port}`)
    t.equal(code, 2)
    t.match(stderr, `10.96.0.10:${port}: the port is not a number from 1 to 65535`)
  }
  for (const [target, example] of [
    ['10.96.0.10', '10.96.0.10:80'],
    ['fd00::10:80', '[fd00::10:80]:80'],
    ['[fd00::10]', '[fd00::10]:80'],
  ]) {
    const { code, stderr } = await kubeProxy(...argv, `${target}`)
    t.equal(code, 2)
    t.match(stderr, `${target} is an address without a port; write both, such as ${example}\n`)
  }
})

t.test('a missing folder is an error at once', async (t) => {
  const argv = [program, 'explain', 'web', '--manifests', '/nowhere', '--mode', 'nftables']
  const { code, stderr } = await runCommand(process.execPath, argv)
  t.equal(code, 2)
  t.match(stderr, /\/nowhere: no such file or folder\n$/)
})

t.test('explain says how endpoints are chosen, and what a mode uses instead', async (t) => {
  const service = {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: {
      name: 'busy',
      annotations: { 'kube-proxy-ts/balance': 'least-connections', 'kube-proxy-ts/weight': 'a=b' },
    },
    spec: { clusterIP: '10.96.0.77', ports: [{ port: 80 }] },
  }
  const slice = {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { name: 'busy-1', labels: { 'kubernetes.io/service-name': 'busy' } },
    addressType: 'IPv4',
    ports: [{ port: 8080 }],
    endpoints: [{ addresses: ['10.244.1.1'] }, { addresses: ['10.244.1.2'] }],
  }
  const files = { 'busy.json': JSON.stringify(service), 'slice.json': JSON.stringify(slice) }
  const folder = t.testdir(files)
  const asked = async (mode: string) => {
    const argv = ['explain', 'busy', '--mode', mode, '--manifests', folder, '--node', 'n']
    return kubeProxy(...argv)
  }
  const rules = await asked('nftables')
  const instead =
    /balance: least-connections is not what this mode does: rules of the kernel do not count connections; random is used/
  t.match(rules.stdout, instead)
  t.notMatch(rules.stderr, instead, 'once is enough')
  t.match(rules.stderr, /kube-proxy-ts\/weight: "a=b" has no effect; valid: NAME=WEIGHT/)
  const sockets = await asked('ebpf')
  t.match(sockets.stdout, /least-connections is what connections get that are translated at their/)
  t.match(sockets.stdout, /one of 2 endpoints by chance: of two, the one at which fewer conn/)
  t.match(
    sockets.stdout,
    /for packets random is used: rules of the kernel do not count connections/,
  )
  const own = await asked('userspace')
  t.match(own.stdout, /Chosen by annotation kube-proxy-ts\/balance: least-connections\.\n/)
  t.notMatch(own.stderr, /least-connections/)
})

t.test('explain tells of affinity, and what a Service without any endpoint may lack', async (t) => {
  const web = readFileSync('examples/services/web.yaml', 'utf8')
  const folder = t.testdir({
    affine: { 'web.yaml': web.replace('spec:\n', 'spec:\n  sessionAffinity: ClientIP\n') },
    empty: { 'web.yaml': web.replace(/endpoints:\n[^]*$/, 'endpoints: []\n') },
  })
  for (const mode of ['nftables', 'iptables', 'userspace']) {
    const { stdout } = await kubeProxy(
      ...['explain', 'web', '--mode', mode, '--manifests', `${folder}/affine`],
    )
    t.match(stdout, /\nSession affinity: a client comes back to its endpoint .*10800 s;/, mode)
  }
  const none = await kubeProxy('explain', 'web', '--manifests', `${folder}/empty`)
  t.match(none.stdout, /none; .*: does its selector fit the labels of a pod\?/)
  t.notMatch(none.stdout, /Session affinity/)
})

t.test('explain does not say "one of 1"', async (t) => {
  const targets = { nftables: 'the only endpoint here: 10.244.1.11 port 53', ipvs: 'the only one' }
  const sockets = {
    ebpf: 'the only endpoint here, and its',
    userspace: 'in its turn, the only one',
  }
  const slices = readFileSync('examples/services/dns.yaml', 'utf8')
  const one = slices.split('\n').filter((line) => !line.includes('10.244.2.21'))
  const folder = t.testdir({ 'dns.yaml': one.join('\n') })
  for (const [mode, words] of Object.entries({ ...targets, ...sockets })) {
    const of = ['--manifests', folder, '--mode', mode]
    const argv = ['explain', 'kube-system/kube-dns', ...of]
    const { stdout } = await kubeProxy(...argv)
    t.ok(stdout.includes(words), `${mode}: ${stdout}`)
  }
})

t.test('explain names what the mode cannot do, and what the proxy does', async (t) => {
  const annotations = {
    'kube-proxy-ts/max-connections': '7',
    'kube-proxy-ts/keep-alive': '30s',
    'kube-proxy-ts/first-byte-timeout': '2s',
    'kube-proxy-ts/proxy-protocol': 'v1',
  }
  const service = {
    ...{ apiVersion: 'v1', kind: 'Service', metadata: { name: 'busy', annotations } },
    spec: {
      clusterIP: '10.96.0.9',
      ports: [
        { name: 'web', port: 80 },
        { name: 'dns', port: 53, protocol: 'UDP' },
      ],
    },
  }
  const folder = t.testdir({ 'busy.json': JSON.stringify(service) })
  const asked = async (mode: string, port = 'web', ...more: string[]) => {
    const of = ['--mode', mode, '--manifests', folder, '--node', 'n', ...more]
    return kubeProxy('explain', `busy:${port}`, ...of)
  }
  const rules = await asked('iptables')
  const unsupported =
    /max-connections: 7 has no effect, because iptables mode cannot do it; only userspace/
  t.match(rules.stdout, unsupported)
  t.notMatch(rules.stderr, unsupported, 'once is enough')
  const data = await asked('iptables', 'web', '--json')
  t.match(data.stderr, unsupported, 'data has no such lines')
  t.notMatch(rules.stdout, /silent for/)
  const own = await asked('userspace')
  t.match(own.stdout, /At most 7 connections from here to each endpoint/)
  t.match(own.stdout, /silent for 30s is asked whether it is still there, and reset 10s later/)
  t.match(own.stdout, /whose first byte takes longer than 2s is tried last/)
  t.match(own.stdout, /get the client's address in a PROXY header, v1/)
  t.notMatch(own.stderr, /has no effect/)
  t.match((await asked('userspace', 'dns')).stdout, /Datagrams have no PROXY header, because v1/)
})

t.test('explain tells of checks, and what happens when an endpoint leaves', async (t) => {
  const annotations = {
    'kube-proxy-ts/health-check': 'http:/ready',
    'kube-proxy-ts/health-check-interval': '2s',
    'kube-proxy-ts/health-check-last': 'remove',
    'kube-proxy-ts/on-endpoint-removal': 'reset-after=30s',
  }
  const ports = [
    { name: 'web', port: 80 },
    { name: 'dns', port: 53, protocol: 'UDP' },
  ]
  const service = (name: string, more: object) => ({
    ...{ apiVersion: 'v1', kind: 'Service', metadata: { name, annotations: more } },
    spec: { clusterIP: '10.96.0.9', ports },
  })
  const keeps = { 'kube-proxy-ts/on-endpoint-removal': 'keep' }
  const single = {
    'kube-proxy-ts/health-check': 'tcp',
    'kube-proxy-ts/health-check-fall': '1',
    'kube-proxy-ts/max-connections': '1',
  }
  const folder = t.testdir({
    'busy.json': JSON.stringify(service('busy', annotations)),
    'calm.json': JSON.stringify(service('calm', keeps)),
    'single.json': JSON.stringify(service('single', single)),
  })
  const asked = async (target: string, mode: string) => {
    const of = ['--mode', mode, '--manifests', folder, '--node', 'n']
    return (await kubeProxy('explain', target, ...of)).stdout
  }
  const forgets = 'The kernel forgets connections 30s after their endpoint left'
  const texts = {
    userspace: 'Connections are reset 30s after their endpoint left',
    ...{ iptables: forgets, nftables: forgets },
    ebpf: 'The kernel forgets connections of other machines 30s after their endpoint left',
  }
  for (const [mode, text] of Object.entries(texts)) {
    const told = await asked('busy:web', mode)
    t.match(told, `${text} (annotation kube-proxy-ts/on-endpoint-removal).`)
    t.match(
      told,
      'Endpoints are checked by http:/ready every 2s, and left out after failing 3 times in a row; if all fail, none is used (annotation kube-proxy-ts/health-check).',
    )
  }
  t.notMatch(await asked('busy:web', 'ipvs'), /endpoint left/)
  const one = await asked('single:web', 'userspace')
  t.match(one, 'left out after failing once; if all fail')
  t.match(one, 'At most 1 connection from here to each endpoint')
  const udp = await asked('busy:dns', 'userspace')
  t.match(udp, 'Endpoints are not checked: checks use TCP, and this names no port for them')
  t.notMatch(udp, /endpoint left/, 'datagrams belong to no connection')
  const calm = await asked('calm:web', 'nftables')
  t.match(calm, 'Connections go on when their endpoint leaves (annotation')
  t.notMatch(calm, /checked/)
})

t.test('explain does not promise the client to pods of one bridge', async (t) => {
  const sight = async (...flags: string[]) => (await explain('web', ...flags)).stdout
  const hidden =
    /sent to 10\.244\.1\.11:8080, which sees the sender \(this node, if they share a bridge\)\n/
  t.match(await sight('--mode', 'userspace'), hidden)
  t.notMatch(await sight('--mode', 'userspace', '--from', 'outside'), /bridge/)
  t.notMatch(await sight('--mode', 'nftables'), /bridge/)
})

t.test(
  'explain shows addresses instead of rules on a machine without iptables',
  { skip: withoutProgramsSkip() },
  async (t) => {
    const question = ['explain', 'web', '--mode', 'userspace', '--manifests', examples, '--live']
    const argv = [process.execPath, program, ...question, '--node', 'node-1']
    const { stdout, code } = await runCommand(...withoutPrograms(argv))
    t.equal(code, 0)
    t.match(stdout, /address 10\.96\.0\.10 of this machine/)
    t.notMatch(stdout, /DNAT|KUBE-/)
  },
)

t.test(
  'explain shows which rule refuses or drops a packet, and which endpoints a policy leaves out',
  async (t) => {
    t.match((await explain('closed')).stdout, /has no endpoints.*\n.*\n\nSo it is refused/)
    const shop = await explain('203.0.113.20:443', '--from', 'outside', '--mode', 'nftables')
    t.match(shop.stdout, /ip saddr != 198\.51\.100\.0\/24 drop\n.*\n\nSo it is dropped/)
    t.match(shop.stdout, /10\.244\.2\.21:8443 .*not for traffic from outside \(policy Local\)/)
    t.match(
      (await explain('8.8.8.8:53')).stdout,
      /no address of a Service.*\n\n\nSo it is sent on to 8\.8\.8\.8:53/s,
    )
  },
)

t.test(
  'explain --json prints data, and a wrong question ends with exit code 2 and the known Services',
  async (t) => {
    const { stdout } = await explain('192.0.2.1:30080', '--from', '198.51.100.7', '--json')
    const { service, ways } = JSON.parse(stdout) as {
      service: string
      ways: { probability: number; end: string }[]
    }
    t.equal(service, 'default/web:http')
    t.same(
      ways.map(({ probability, end }) => [probability, end]),
      [
        [0.5, 'sent'],
        [0.5, 'sent'],
      ],
    )
    const udp = await explain('web', '--protocol', 'UDP')
    t.match(udp.stderr, /no Service port of UDP "web"; there are: kube-system\/kube-dns:dns\n/)
    const wrong = await explain('nothing')
    t.equal(wrong.code, 2)
    t.match(wrong.stderr, /no Service port "nothing"; there are: default\/closed:http/)
    t.match(
      (await explain('web', '--from', 'mars')).stderr,
      /--from: "mars" is not pod, node, outside/,
    )
  },
)
