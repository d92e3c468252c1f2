import { writeFile } from 'node:fs/promises'
import t from 'tap'
import { selfSigned } from '../../../lib/lab/apiserver/certificate.js'
import { listAt, textAt } from '../../../lib/lab/apiserver/json.js'
import { kubectlMinor, noKubectl, startServer } from './support/kubectl.js'

const web = `
apiVersion: v1
kind: Service
metadata: { name: web, labels: { app: web } }
spec:
  type: NodePort
  selector: { app: web }
  ports: [{ name: http, port: 80, targetPort: 8080 }]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: { name: web-1, labels: { kubernetes.io/service-name: web } }
addressType: IPv4
ports: [{ name: http, port: 8080, protocol: TCP }]
endpoints: [{ addresses: [10.0.0.1] }, { addresses: [10.0.0.2] }]
`

const ref = { apiVersion: 'v1', kind: 'Service', name: 'web' }

void t.test(
  'kubectl over TLS trusts the certificate of the kubeconfig',
  { skip: noKubectl },
  async (t) => {
    const tls = selfSigned(['127.0.0.1', '::1'])
    const server = await startServer({ tls, host: '::1' })
    t.teardown(() => server.stop())
    t.match(server.url, /^https:\/\/\[::1\]:/)
    t.match(await server.ok('get namespaces'), 'kube-system')
    const other = selfSigned(['::1'])
    const file = `${server.kubeconfig}.crt`
    await writeFile(file, other.certificate)
    const wrong = await server.kubectl(`get namespaces --certificate-authority=${file}`)
    t.match(wrong.stderr, 'certificate')
  },
)

void t.test(
  'kubectl apply --server-side keeps owners, reports conflicts, and can force',
  { skip: noKubectl },
  async (t) => {
    const server = await startServer()
    t.teardown(() => server.stop())
    const text = web.split('---')[0] ?? ''
    await server.ok('apply --server-side -f -', text)
    t.match(await server.ok('apply --server-side -f -', text), 'serverside-applied')
    await server.ok('patch svc web -p {"spec":{"selector":{"app":"other"}}}')
    const conflict = await server.kubectl('apply --server-side -f -', text)
    t.match(conflict.stderr, 'conflict with "kubectl-patch" using v1: .spec.selector\n')
    await server.ok('apply --server-side --force-conflicts -f -', text)
    t.match(server.api.get(ref), { spec: { selector: { app: 'web' } } })
    // Fields that a manager no longer sends are removed. Those of the server stay.
    await server.ok('apply --server-side -f -', text.replace('labels: { app: web }', 'labels: {}'))
    t.match(server.api.get(ref), {
      metadata: { labels: undefined },
      spec: { clusterIP: /^10\./, ports: [{ nodePort: /^30/ }] },
    })
    if (kubectlMinor < 26) {
      t.pass(`kubectl 1.${kubectlMinor} leaves the fields of client-side apply where they are`)
      return
    }
    // Later versions of kubectl move their fields from client-side to server-side apply.
    await server.ok('delete svc web')
    await server.ok('apply -f -', text)
    await server.ok('apply --server-side -f -', text)
    await server.ok('apply --server-side -f -', text.replace('port: 80', 'port: 81'))
    t.match(server.api.get(ref), { spec: { ports: [{ port: 81 }] } })
    t.equal(listAt(server.api.get(ref), 'spec', 'ports').length, 1)
  },
)

void t.test('the real kubectl works unmodified', { skip: noKubectl }, async (t) => {
  const server = await startServer()
  t.teardown(() => server.stop())

  await t.test('apply creates objects, and changes only what differs', async (t) => {
    t.match(await server.ok('apply -f -', web), 'service/web created')
    t.match(await server.ok('apply -f -', web), 'service/web unchanged')
    const before = server.api.get(ref)
    t.match(await server.ok('apply -f -', web.replace('port: 80,', 'port: 81,')), 'web configured')
    const after = server.api.get(ref)
    t.match(after, { spec: { ports: [{ port: 81, targetPort: 8080 }] } })
    t.equal(textAt(after, 'spec', 'clusterIP'), textAt(before, 'spec', 'clusterIP'))
  })

  await t.test('get prints the columns of a real cluster', async (t) => {
    const [head = '', row = ''] = (await server.ok('get svc -o wide')).split('\n')
    t.match(head, /^NAME +TYPE +CLUSTER-IP +EXTERNAL-IP +PORT\(S\) +AGE +SELECTOR$/)
    t.match(row, /^web +NodePort +10\.96\.\S+ +<none> +81:30\d{3}\/TCP +\d+s +app=web$/)
    t.match(await server.ok('get endpointslices'), /web-1 +IPv4 +8080 +10\.0\.0\.1,10\.0\.0\.2 /)
    t.match(await server.ok('get svc web -o jsonpath={.spec.clusterIP}'), /^10\.96\./)
    t.match(await server.ok('get all -A'), 'service/web')
  })

  await t.test('a new namespace is active, and has the label of its name', async (t) => {
    await server.ok('create namespace new')
    const row = /^new +Active +\d+s +kubernetes.io\/metadata.name=new$/m
    t.match(await server.ok('get namespaces --show-labels'), row)
    await server.ok('delete namespace new')
  })

  await t.test('patch, label and annotate write with every patch type', async (t) => {
    await server.ok('patch svc web --type=merge -p {"spec":{"sessionAffinity":"ClientIP"}}')
    t.match(server.api.get(ref), {
      spec: { sessionAffinityConfig: { clientIP: { timeoutSeconds: 10_800 } } },
    })
    await server.ok('patch svc web -p {"spec":{"ports":[{"port":82,"name":"admin"}]}}')
    t.match(server.api.get(ref), { spec: { ports: [{ port: 82 }, { port: 81 }] } })
    await server.ok('patch svc web --type=json -p [{"op":"remove","path":"/spec/ports/0"}]')
    t.match(server.api.get(ref), { spec: { ports: [{ port: 81 }] } })
    await server.ok('label svc web tier=front')
    t.match(server.api.get(ref), { metadata: { labels: { tier: 'front' } } })
    t.match(await server.ok('get svc -l tier=front -o name'), 'service/web')
    t.equal(await server.ok('get svc -l tier!=front -o name'), '')
  })

  await t.test('edit writes what the editor saved', async (t) => {
    await server.ok(
      'patch svc web --type=merge -p {"spec":{"sessionAffinity":"None","sessionAffinityConfig":null}}',
    )
    process.env['KUBE_EDITOR'] = 'sed -i "s/sessionAffinity: None/sessionAffinity: ClientIP/"'
    t.match(await server.ok('edit svc web'), 'service/web edited')
    t.match(server.api.get(ref), { spec: { sessionAffinity: 'ClientIP' } })
  })

  await t.test('a mistyped field is refused by name', async (t) => {
    const typed = web.split('---')[0]?.replace('targetPort', 'targetport') ?? ''
    const warning = 'Warning: unknown field "spec.ports[0].targetport"'
    const { code, stderr } = await server.kubectl('apply --dry-run=server -f -', typed)
    if (kubectlMinor < 25) {
      // This kubectl checks by itself, but has no schema from here. It only prints the warning.
      t.match(stderr, warning)
      return
    }
    t.equal(code, 1)
    t.match(stderr, 'strict decoding error: unknown field "spec.ports[0].targetport"')
    const warned = await server.kubectl('apply --dry-run=server --validate=warn -f -', typed)
    t.match(warned.stderr, warning)
  })

  await t.test('explain tells what this server knows of a kind', async (t) => {
    if (kubectlMinor < 27) {
      t.pass(`kubectl 1.${kubectlMinor} asks for a form of schemas that this server does not have`)
      return
    }
    t.match(await server.ok('explain service.spec'), /clusterIP\t<string>\n +The address inside/)
    t.match(await server.ok('explain svc.spec.ports'), /FIELD: ports <\[\]ServicePort>/)
    t.match(await server.ok('explain deployment --recursive'), /containerPort\t<integer>/)
    t.match(await server.ok('explain endpointslices'), /kubernetes\.io\/service-name/)
    t.match(await server.ok('explain jobs'), /does not know\s+their fields/)
    t.match((await server.kubectl('explain service.spec.nothing')).stderr, 'does not exist')
    const kinds =
      'pod service deployment replicaset endpointslice endpoints node namespace configmap event'
    for (const name of kinds.split(' ')) {
      const told = await server.ok(`explain ${name}`)
      t.notMatch(told, /<no description>|<empty>|does not know/, name)
      t.match(told, /metadata\t<ObjectMeta>\n +The name of the object/)
    }
    const parts =
      'pod.spec.containers pod.status deployment.spec.strategy deployment.status.conditions rs.spec ep.subsets endpointslice.endpoints node.status.addresses'
    for (const path of parts.split(' ')) {
      const told = await server.ok(`explain ${path}`)
      t.match(told, /FIELDS:\n {2}\w+\t/, path)
      t.notMatch(told, /<no description>|<empty>/, path)
    }
  })

  await t.test('a refusal names the field', async (t) => {
    const { code, stderr } = await server.kubectl(
      'patch svc web -p {"spec":{"clusterIP":"10.96.9.9","clusterIPs":["10.96.9.9"]}}',
    )
    t.equal(code, 1)
    t.match(stderr, 'spec.clusterIPs[0]: Invalid value')
    t.match(stderr, 'may not change once set')
    t.match((await server.kubectl('get svc nothing')).stderr, 'services "nothing" not found')
  })

  await t.test('delete removes and waits', async (t) => {
    t.match(await server.ok('delete svc web'), 'service "web" deleted')
    t.equal(server.api.get(ref), undefined)
    t.match(await server.ok('delete -f -', web.split('---')[1]), 'web-1')
  })
})
