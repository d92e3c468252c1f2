import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { nodeNameFor } from '../../../lib/lab/cli/apiserver.js'

const main = fileURLToPath(new URL('../../../lib/main.js', import.meta.url))
const examples = fileURLToPath(new URL('../../../../examples/services', import.meta.url))

/** Starts the command; `said` grows while it runs. */
function start(...args: readonly string[]) {
  const child = spawn(process.execPath, [main, 'apiserver', ...args])
  const state = { said: '', child, ended: Promise.resolve<number | null>(null) }
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (data: Buffer) => (state.said += data.toString()))
  }
  state.ended = new Promise((resolve) => child.on('close', resolve))
  return state
}

void t.test('apiserver serves the manifests, says where, and ends on SIGTERM', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'kpts-cli-'))
  t.teardown(() => rm(folder, { recursive: true }))
  const kubeconfig = join(folder, 'kubeconfig')
  const server = start(
    '--listen',
    '127.0.0.1:0',
    '--manifests',
    examples,
    '--write-kubeconfig',
    kubeconfig,
  )
  await new Promise<void>((resolve) => {
    server.child.stdout.on('data', () => {
      if (server.said.includes('try: kubectl')) resolve()
    })
  })
  const url = /at (http:\S+)/.exec(server.said)?.[1] ?? ''
  t.match(await readFile(kubeconfig, 'utf8'), `server: ${url}`)
  const response = await fetch(`${url}/api/v1/services`)
  const { items } = (await response.json()) as { items: { metadata: { name: string } }[] }
  t.ok(items.some((item) => item.metadata.name === 'web'))
  const nodes = await fetch(`${url}/api/v1/nodes`)
  t.ok(((await nodes.json()) as { items: object[] }).items.length > 0, 'pods find a place')

  const taken = start('--listen', new URL(url).host)
  t.equal(await taken.ended, 2)
  t.match(taken.said, /listen on 127\.0\.0\.1 port \d+: .*address already in use/)
  server.child.kill('SIGTERM')
  t.equal(await server.ended, 0)

  const again = start('--listen', '127.0.0.1:0')
  await once(again.child.stdout, 'data')
  again.child.kill('SIGHUP')
  t.equal(await again.ended, 0, 'the end of a terminal ends it, too')
})

void t.test('apiserver names what it cannot serve, and ends with exit code 2', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'kpts-cli-'))
  t.teardown(() => rm(folder, { recursive: true }))
  const file = join(folder, 'bad.yaml')
  const taken = join(folder, 'taken')
  const typo = join(folder, 'typo.json')
  await mkdir(taken)
  await writeFile(
    file,
    'apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: 0}]}\n',
  )
  const spec = { sesionAffinity: 'None', ports: [{ port: 80 }] }
  const service = { apiVersion: 'v1', kind: 'Service', metadata: { name: 'a' }, spec }
  await writeFile(typo, JSON.stringify(service))
  for (const [args, expected] of [
    [['--listen', 'nowhere'], /expected HOST:PORT/],
    [['--listen', '127.0.0.1:99999'], /expected HOST:PORT/],
    [['--manifests', join(folder, 'none')], /is no file, and no folder/],
    [
      ['--listen', '127.0.0.1:0', '--write-kubeconfig', join(folder, 'none', 'k')],
      /^kube-proxy: the kubeconfig \S+\/none\/k cannot be written: ENOENT: [^,\n]+\n$/,
    ],
    [
      ['--listen', '127.0.0.1:0', '--write-kubeconfig', taken],
      new RegExp(`^kube-proxy: the kubeconfig ${taken} cannot be written: EISDIR: [^,\\n]+\\n$`),
    ],
    [['--manifests', file], /bad\.yaml:5: Service "a" is invalid: \[?spec\.ports\[0\]\.port/],
    [['--manifests', typo], /typo\.json:1: Service .*unknown field "spec\.sesionAffinity"/],
  ] as const) {
    const ended = start(...args)
    t.equal(await ended.ended, 2)
    t.match(ended.said, expected)
  }
  t.same((await readdir(folder)).sort(), ['bad.yaml', 'taken', 'typo.json'], 'no draft is left')
})

void t.test('apiserver --load makes Services, --changes changes their slices', async (t) => {
  const server = start('--listen', '127.0.0.1:0', '--load', '20x3', '--changes', '50/s')
  t.teardown(() => server.child.kill('SIGKILL'))
  await new Promise<void>((resolve) => {
    server.child.stdout.on('data', () => {
      if (server.said.includes('serving')) resolve()
    })
  })
  const url = /at (http:\S+)/.exec(server.said)?.[1] ?? ''
  const list = async (path: string) => {
    const response = await fetch(`${url}${path}`)
    return (await response.json()) as {
      metadata: { resourceVersion: string }
      items: { metadata: { name: string } }[]
    }
  }
  const services = await list('/api/v1/services')
  t.equal(services.items.filter(({ metadata }) => metadata.name.startsWith('service-')).length, 20)
  const { resourceVersion } = services.metadata
  const path = `/apis/discovery.k8s.io/v1/endpointslices?watch=true&resourceVersion=${resourceVersion}`
  const watch = await fetch(url + path)
  const reader = watch.body?.getReader()
  const first = await reader?.read()
  t.match(Buffer.from((first?.value as Uint8Array | undefined) ?? []).toString(), /"MODIFIED"/)
  await reader?.cancel()
  server.child.kill('SIGTERM')
  t.equal(await server.ended, 0)
})

void t.test('apiserver refuses a load that it has no addresses for', async (t) => {
  for (const wrong of ['--load=60001x1', '--load=many', '--changes=fast']) {
    const refused = start('--listen', '127.0.0.1:0', wrong)
    t.equal(await refused.ended, 2, wrong)
    t.match(refused.said, /expected/)
  }
})

void t.test('the node has the name of the host, if a Node can have it', (t) => {
  t.equal(nodeNameFor('Desk.example.org'), 'desk.example.org')
  for (const host of ['build_host', '(none)', '']) t.equal(nodeNameFor(host), 'node-1')
  t.end()
})
