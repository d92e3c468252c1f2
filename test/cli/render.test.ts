import t from 'tap'
import { fileURLToPath } from 'node:url'
import { render } from '../../lib/cli/render.js'
import { configWith } from '../../lib/config/load.js'
import { modeNames } from '../../lib/modes/registry.js'
import type { ModeName } from '../../lib/config/config.js'

const examples = fileURLToPath(new URL('../../../examples/services/', import.meta.url))
const modes = modeNames

function request(mode: ModeName, manifests: string) {
  return {
    mode,
    manifests,
    families: ['IPv4'] as const,
    nodeName: 'node-1',
    config: configWith({ mode, clusterCIDR: '10.244.0.0/16' }),
    addresses: ['192.0.2.1', '127.0.0.1'],
  }
}

const web = `apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIPs: [10.96.0.10, "fd00::10"], ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: web}
subsets: [{addresses: [{ip: 10.244.0.5}, {ip: "fd00:1::5"}], ports: [{name: http, port: 8080}]}]
`

t.test('render turns manifests into the text of every mode, without root', async (t) => {
  const path = t.testdir({ 'web.yaml': web })
  for (const mode of modes) {
    const { text, warnings } = await render(request(mode, path))
    t.same(warnings, [], mode)
    t.match(text, /10\.96\.0\.10/, `${mode}: the ClusterIP`)
    t.match(text, /10\.244\.0\.5/, `${mode}: the endpoint`)
    t.notMatch(text, /fd00/, `${mode}: nothing of the other family`)
    t.equal((await render(request(mode, path))).text, text, `${mode}: the same every time`)
    const both = await render({ ...request(mode, path), families: ['IPv4', 'IPv6'] })
    t.match(both.text, /^# IPv4\n[\s\S]*\n# IPv6\n[\s\S]*fd00:1::5/, `${mode}: both families`)
  }
})

t.test('render accepts every object of the examples', async (t) => {
  for (const mode of modes) {
    const { text, warnings } = await render(request(mode, examples))
    t.same(warnings, [], mode)
    t.ok(text.length > 500, mode)
  }
})

t.test('render reports what it cannot read, and leaves out parts that make no sense', async (t) => {
  const [mode] = modes
  if (!mode) throw new Error('no mode is built in')
  await t.rejects(render(request(mode, '/does/not/exist')), {
    name: 'ConfigError',
    message: /no object can be read there\n\/does\/not\/exist: no such file or folder/,
  })
  const broken = t.testdir({ 'a.yaml': 'kind: [\n' })
  await t.rejects(render(request(mode, broken)), { message: /a\.yaml:\d+: / })
  const half = t.testdir({ 'a.yaml': 'kind: [\n', 'b.yaml': web.replace('10.96.0.10', 'x') })
  const { warnings } = await render(request(mode, half))
  t.match(warnings.join('\n'), /a\.yaml:\d+: /)
  t.match(warnings.join('\n'), /Service default\/web is skipped: .*"x" is not an IP address/)
})

t.test('render uses the configuration as a node does', async (t) => {
  const path = t.testdir({ 'web.yaml': web })
  const masquerade = configWith({ 'iptables.masqueradeBit': 3, 'iptables.masqueradeAll': true })
  const { text } = await render({ ...request('iptables', path), config: masquerade })
  t.match(text, /0x8\/0x8|0x00000008/, 'the mark')
  t.not(text, (await render(request('iptables', path))).text)
})
