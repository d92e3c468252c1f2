import t, { type Test } from 'tap'
import fc from 'fast-check'
import { execFile } from 'node:child_process'
import { mkdirSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import type { Worker } from 'node:worker_threads'
import { ManifestFolder } from '../../lib/sources/manifest-folder.js'
import { parseManifest, type ManifestObject } from '../../lib/sources/manifest-file.js'
import { mirrorEndpoints } from '../../lib/sources/mirrored-endpoints.js'
import { followNodeAddresses, interfaceAddresses } from '../../lib/sources/node-addresses.js'
import type { ObjectSink } from '../../lib/sources/source.js'
import { parseEndpointSlice } from '../../lib/state/parse-endpoint-slice.js'
import { anyText, examplesOf, nearText, textsOf } from '../support/corpus.js'
import { refuseReading } from '../support/refused-reading.js'

const service = (name: string, port = 80) =>
  `apiVersion: v1\nkind: Service\nmetadata: {name: ${name}}\nspec: {clusterIP: 10.0.0.1, ports: [{port: ${port}}]}\n`

/** Records what it gets. A test can wait for it. */
class RecordingSink implements ObjectSink {
  readonly told: string[] = []
  #waiting: (() => void)[] = []
  upsert(kind: string, raw: unknown) {
    const { metadata, spec } = raw as {
      metadata: { name: string }
      spec?: { ports?: { port: number }[] }
    }
    this.#tell(`+${kind}/${metadata.name}:${spec?.ports?.[0]?.port ?? ''}`)
  }
  remove(kind: string, namespace: string, name: string) {
    this.#tell(`-${kind}/${namespace}/${name}`)
  }
  synced(kind: string) {
    this.#tell(`synced ${kind}`)
  }
  failed(message: string) {
    this.#tell(`failed ${message}`)
  }
  /** Resolves when a line matches, with all lines so far, and forgets them. */
  async saw(pattern: RegExp): Promise<string[]> {
    while (!this.told.some((line) => pattern.test(line))) {
      await new Promise<void>((resolve) => this.#waiting.push(resolve))
    }
    return this.told.splice(0)
  }
  #tell(line: string) {
    this.told.push(line)
    for (const wake of this.#waiting.splice(0)) wake()
  }
}

t.test('manifests may have several documents, lists, JSON and unknown kinds', async (t) => {
  const yaml = `${service('a')}---
# nothing but a comment
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Service, metadata: {name: b, namespace: n}}
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: d}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSliceList
items: [{metadata: {name: s}}]
---
{apiVersion: v1, kind: Node, metadata: {name: n1, namespace: ignored}}
---
{apiVersion: serving.knative.dev/v1, kind: Service, metadata: {name: k}}
`
  const { objects, problems } = parseManifest(yaml, 'f.yaml')
  t.same(problems, [])
  t.same(
    objects.map(({ kind, namespace, name, place }) => [kind, namespace, name, place].join(' ')),
    [
      'Service default a f.yaml:1',
      'Service n b f.yaml:8',
      'EndpointSlice default s f.yaml:14',
      'Node  n1 f.yaml:18',
    ],
  )
  t.equal(objects[2]?.raw.kind, 'EndpointSlice', 'items of a typed list get their kind')
  const json = JSON.stringify({ apiVersion: 'v1', kind: 'Service', metadata: { name: 'j' } })
  t.match(parseManifest(`\n${json}`, 'f.json').objects, [{ name: 'j' }])
})

t.test('errors in manifests are reported as file:line: reason', async (t) => {
  for (const [text, problem] of [
    [`${service('a')}---\nkind: [\n`, /^f\.yaml:\d+: .*\]/],
    ['{"apiVersion": "v1"\n "kind": "x"}', /^f\.yaml:2: /],
    [`${service('a')}---\nfoo: bar\n`, /^f\.yaml:6: apiVersion or kind is missing/],
    ['just text\n', /^f\.yaml:1: "just text" is not an object/],
    ['a: 1\na: 2\n', /^f\.yaml:2: .*unique/],
    // As in /etc/services.
    ['# comment\necho 7/tcp\n\tdiscard 9/tcp\ndaytime: [13/tcp\nssh: [22/tcp\n', /^f\.yaml:\d: /],
    ['{apiVersion: v1, kind: Service}', /^f\.yaml:1: Service: metadata\.name is missing/],
    [
      '{apiVersion: discovery.k8s.io/v1beta1, kind: EndpointSlice, metadata: {name: x}}',
      /v1beta1" is not read; write apiVersion: discovery\.k8s\.io\/v1$/,
    ],
    [
      `a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [${'*a,'.repeat(12)}]\nc: &c [${'*b,'.repeat(12)}]\nd: [${'*c,'.repeat(12)}]\n`,
      /^f\.yaml:1: .*alias/i,
    ],
  ] as const) {
    const { problems } = parseManifest(text, 'f.yaml')
    t.match(problems[0], problem)
    t.equal(problems.length, 1, 'what follows from it is not told')
  }
  t.same(parseManifest('', 'f.yaml'), { objects: [], problems: [] })
})

t.test('E22: Endpoints without slices become a slice for each IP family', async (t) => {
  const endpoints = (name: string) => ({
    kind: 'Endpoints' as const,
    namespace: 'default',
    name,
    place: 'f:1',
    raw: {
      subsets: [
        {
          addresses: [{ ip: '10.1.0.1', nodeName: 'n1' }, { ip: 'fd00::1' }],
          notReadyAddresses: [{ ip: '10.1.0.2' }, { ip: 'nonsense' }],
          ports: [{ port: 8080 }, { name: 'x', port: 53, protocol: 'UDP' }],
        },
        {},
      ],
    },
  })
  const slice: ManifestObject = {
    kind: 'EndpointSlice',
    namespace: 'default',
    name: 'own',
    place: 'f:2',
    raw: { metadata: { labels: { 'kubernetes.io/service-name': 'sliced' } } },
  }
  const mirrored = mirrorEndpoints([endpoints('web'), endpoints('sliced'), slice])
  t.same(
    mirrored.map(({ name }) => name),
    ['web-0-ipv4', 'web-0-ipv6', 'own'],
  )
  t.match(parseEndpointSlice(mirrored[0]?.raw), {
    outcome: 'accepted',
    value: {
      service: 'web',
      family: 'IPv4',
      ports: [
        { name: '', protocol: 'TCP', port: 8080 },
        { name: 'x', protocol: 'UDP', port: 53 },
      ],
      endpoints: [
        { ip: '10.1.0.1', ready: true, nodeName: 'n1' },
        { ip: '10.1.0.2', ready: false },
      ],
    },
  })
})

/** Follows a folder of manifests until the test ends. */
function follow(t: Test, path: string): RecordingSink {
  const sink = new RecordingSink()
  const stop = new AbortController()
  const running = new ManifestFolder({ path, settleMs: 20, pollMs: 200 }).run(sink, stop.signal)
  t.teardown(async () => {
    stop.abort()
    await running
  })
  return sink
}

t.test('a folder is followed: files are added, changed, broken and removed', async (t) => {
  const folder = t.testdir({ 'a.yaml': service('a'), 'b.yml': service('b'), 'x.txt': 'no' })
  const sink = follow(t, folder)
  t.same(await sink.saw(/synced EndpointSlice/), [
    '+Service/a:80',
    '+Service/b:80',
    'synced Node',
    'synced ServiceCIDR',
    'synced Service',
    'synced EndpointSlice',
  ])
  writeFileSync(join(folder, 'b.yml'), service('b', 81))
  t.same(await sink.saw(/Service/), ['+Service/b:81'], 'what did not change is not told again')
  writeFileSync(join(folder, 'b.yml'), 'kind: [\n')
  t.match(await sink.saw(/failed/), [/^failed .*b\.yml:\d+: /])
  rmSync(join(folder, 'a.yaml'))
  t.same(await sink.saw(/-/), ['-Service/default/a'], 'the last good content of b stays in force')
  writeFileSync(join(folder, 'b.yml'), service('c'))
  t.same(await sink.saw(/\+/), ['-Service/default/b', '+Service/c:80'])
  mkdirSync(join(folder, 'sub'))
  writeFileSync(
    join(folder, 'sub', 'd.json'),
    '{"apiVersion":"v1","kind":"Node","metadata":{"name":"d"}}',
  )
  t.same(await sink.saw(/\+/), ['+Node/d:'])
  renameSync(folder, `${folder}-away`)
  t.match(await sink.saw(/failed/), [/no such file or folder/], 'nothing is removed (R01)')
  renameSync(`${folder}-away`, folder)
})

/** Follows a folder, takes all descriptors for a while, and prints what the source reported. */
const withoutDescriptors = `
  const { ManifestFolder } = await import(process.argv[1] + 'sources/manifest-folder.js')
  const { scan } = await import(process.argv[1] + 'kernel/follow-path.js')
  const { openSync, closeSync, writeFileSync } = await import('node:fs')
  const path = process.argv[2]
  const say = (line) => console.log(line)
  let heard = () => undefined
  const sink = {
    upsert: (kind, { metadata }) => (say('+' + metadata.name), heard(metadata.name)),
    remove: (kind, namespace, name) => say('-' + name),
    synced: () => undefined,
    failed: (line) => (say(line), heard('failure')),
  }
  const until = (wanted) => new Promise((resolve) => (heard = (name) => name === wanted && resolve()))
  const first = until('a')
  void new ManifestFolder({ path, settleMs: 5, pollMs: 5 }).run(sink, new AbortController().signal)
  await first
  const taken = []
  try {
    for (;;) taken.push(openSync('/dev/null'))
  } catch {}
  await scan(path, () => true).then(() => say('listed'), ({ code }) => say(code))
  await until('failure')
  for (const descriptor of taken) closeSync(descriptor)
  const second = until('b')
  writeFileSync(path + '/b.yaml', process.argv[3])
  await second
  process.exit(0)`

t.test('a thread reads a large file, and the rest goes on meanwhile', async (t) => {
  const large = (port: number) =>
    Array.from({ length: 400 }, (_, index) => service(`s${index}`, port)).join('---\n')
  const told = (port: number) =>
    Array.from({ length: 400 }, (_, index) => `+Service/s${index}:${port}`)
  const path = t.testdir({ 'a.yaml': large(80) })
  const file = join(path, 'a.yaml')
  /** In one step: no part of the text is ever read. */
  const replace = (text: string) => {
    writeFileSync(join(path, '.new'), text)
    renameSync(join(path, '.new'), file)
  }
  let threads = 0
  let atStart: (thread: Worker) => void = () => undefined
  const onThread = (thread: Worker) => {
    threads++
    atStart(thread)
    atStart = () => undefined
  }
  process.on('worker', onThread)
  t.teardown(() => process.off('worker', onThread))
  const stop = new AbortController()
  const sink = new RecordingSink()
  const running = new ManifestFolder({ path, settleMs: 20, pollMs: 200 }).run(sink, stop.signal)
  t.teardown(() => stop.abort())
  await sink.saw(/synced EndpointSlice/)
  t.equal(threads, 1, 'at the start, too')
  const all = /\+Service\/s399:/
  atStart = () => replace(large(82))
  replace(large(81))
  const part = await sink.saw(/\+/)
  t.ok(part.length <= 100, 'the objects come in parts')
  const rest = await sink.saw(all)
  t.same([...part, ...rest], told(81), 'one content, though the file has the next already')
  if (!t.equal(threads, 2)) return
  t.same(await sink.saw(all), told(82))
  atStart = (thread) => void thread.terminate()
  replace(large(83))
  const [ended, ...later] = await sink.saw(all)
  t.match(ended, /^failed .*: cannot be read: the thread that read .*a\.yaml has ended/)
  t.same(later, told(83), 'the next thread reads it')
  const wrong = `${large(84)}---\nkind: [\n---\n{}\n`
  replace(wrong)
  const { problems } = parseManifest(wrong, file)
  await sink.saw(/./).then((lines) =>
    t.same(
      lines,
      problems.map((line) => `failed ${line}`),
    ),
  )
  t.match(problems[0], /a\.yaml:2002: /)
  atStart = () => stop.abort()
  replace(large(85))
  await running
  t.same(sink.told, [], 'the end does not wait for a thread')
})

t.test('a folder that cannot be listed for want of descriptors keeps its objects', async (t) => {
  const path = t.testdir({ 'a.yaml': service('a') })
  const lib = new URL('../../lib/', import.meta.url).href
  const script = ['--input-type=module', '-e', withoutDescriptors, lib, path, service('b')]
  const { stdout } = await promisify(execFile)('sh', [
    ...['-c', 'ulimit -n 100; exec "$0" "$@"', process.execPath, ...script],
  ])
  t.match(stdout.trim().split('\n').sort(), [
    '+a',
    '+b',
    /\/.*: cannot be read: EMFILE: .*; raise the limit of open files/,
    'EMFILE',
  ])
})

t.test('a file that cannot be read for want of descriptors is read later', async (t) => {
  const path = t.testdir({ 'a.yaml': service('a'), 'b.yaml': service('b') })
  const sink = follow(t, path)
  await sink.saw(/synced EndpointSlice/)
  const allow = refuseReading(t, (file) => file.endsWith('a.yaml'))
  writeFileSync(join(path, 'a.yaml'), service('c'))
  t.match(await sink.saw(/./), [/^failed .*: cannot be read: EMFILE/])
  writeFileSync(join(path, 'b.yaml'), service('d'))
  t.same(await sink.saw(/\+/), ['-Service/default/b', '+Service/d:80'], 'the others go on')
  allow()
  t.same(await sink.saw(/\+/), ['-Service/default/a', '+Service/c:80'])
})

t.test('R01: a folder in a folder that cannot be read keeps its objects', async (t) => {
  const top = t.testdir({ good: { 'a.yaml': service('a') }, all: { 'b.yaml': service('b') } })
  const path = join(top, 'all')
  /** Puts another link in the place of the folder, in one step. */
  const link = (target: string) => {
    symlinkSync(target, join(top, 'new'))
    renameSync(join(top, 'new'), join(path, 'sub'))
  }
  link('../good')
  const sink = follow(t, path)
  await sink.saw(/synced EndpointSlice/)
  // No name is that long, and the kernel says so to root, too.
  link('x'.repeat(300))
  t.match(await sink.saw(/./), [/^failed .*all: cannot be read: ENAMETOOLONG: .*sub/])
  const once = new RecordingSink()
  await new ManifestFolder({ path }).load(once)
  t.match(once.told, [/^failed .*all: cannot be read: ENAMETOOLONG/])
  writeFileSync(join(top, 'good', 'a.yaml'), service('c'))
  link('../good')
  t.same(await sink.saw(/\+/), ['-Service/default/a', '+Service/c:80'])
})

t.test('the swap of a ConfigMap volume is noticed', async (t) => {
  const folder = t.testdir({
    '..1': { 'f.yaml': service('old') },
    '..2': { 'f.yaml': service('new') },
  })
  symlinkSync('..1', join(folder, '..data'))
  symlinkSync('..data/f.yaml', join(folder, 'f.yaml'))
  const whole = follow(t, folder)
  const single = follow(t, join(folder, 'f.yaml'))
  await Promise.all([whole.saw(/synced EndpointSlice/), single.saw(/synced EndpointSlice/)])
  symlinkSync('..2', join(folder, '..tmp'))
  renameSync(join(folder, '..tmp'), join(folder, '..data'))
  const expected = ['-Service/default/old', '+Service/new:80']
  t.same(await whole.saw(/\+/), expected)
  t.same(await single.saw(/\+/), expected)
})

t.test('R01: nothing counts as synced until the files are read', async (t) => {
  const folder = t.testdir({ 'a.yaml': 'kind: [\n', 'b.yaml': 'kind: [\n' })
  const sink = follow(t, folder)
  t.match(await sink.saw(/b\.yaml/), [/a\.yaml/, /b\.yaml/])
  writeFileSync(join(folder, 'b.yaml'), 'kind: {\n')
  t.match(await sink.saw(/failed/), [/b\.yaml/])
  writeFileSync(join(folder, 'a.yaml'), service('a'))
  t.match(await sink.saw(/synced EndpointSlice/), [/^\+Service\/a/])
  const missing = follow(t, join(folder, 'missing'))
  t.match(await missing.saw(/failed/), [/missing: no such file or folder; waiting for it/])
})

t.test('an object in two files: the later file is used, and the log says so', async (t) => {
  const sink = new RecordingSink()
  const path = t.testdir({ 'a.yaml': service('s', 1), 'b.yaml': service('s', 2) })
  await new ManifestFolder({ path }).load(sink)
  t.match(sink.told, [
    /failed .*b\.yaml:1: Service\/default\/s is also in .*a\.yaml:1; the later one is used/,
    '+Service/s:2',
  ])
})

t.test('node addresses are ordered, canonical, not virtual, and followed', async (t) => {
  const info = (...addresses: string[]) => addresses.map((address) => ({ address }) as never)
  let now: Record<string, never[]> = {
    lo: info('127.0.0.1', '::1'),
    eth0: info('192.168.1.5', 'FE80::1'),
    'kube-ipvs0': info('10.0.0.1'),
    'kube-portals0': info('203.0.113.1'),
  }
  t.same(
    interfaceAddresses(() => now),
    ['127.0.0.1', '::1', '192.168.1.5', 'fe80::1'],
  )
  const stop = new AbortController()
  const told: (readonly string[])[] = []
  let polls = 0
  await followNodeAddresses((addresses) => told.push(addresses), stop.signal, {
    read: async () => interfaceAddresses(() => now),
    known: interfaceAddresses(() => now),
    sleep: async () => {
      polls++
      if (polls === 2) now = { eth0: info('192.168.1.6') }
      if (polls === 4) stop.abort()
    },
  })
  t.same(told, [['192.168.1.6']], 'only changes are told')
})

t.test('the last node addresses stay until they can be read again', async (t) => {
  const stop = new AbortController()
  const told: (readonly string[])[] = []
  let polls = 0
  await followNodeAddresses((addresses) => told.push(addresses), stop.signal, {
    read: async () =>
      interfaceAddresses(() => {
        if (polls === 1) throw new Error('uv_interface_addresses returned Unknown system error 24')
        const address = polls < 3 ? '192.168.1.5' : '192.168.1.6'
        return { eth0: [{ address } as never] }
      }),
    known: ['192.168.1.5'],
    sleep: async () => {
      polls++
      if (polls === 5) stop.abort()
    },
  })
  t.same(told, [['192.168.1.6']])
})

t.test('any text is a manifest or gives a list of problems', async (t) => {
  const texts = fc.oneof(
    anyText(),
    fc.json(),
    fc
      .array(
        fc.constantFrom(
          'kind: Service\n',
          '---\n',
          '- ',
          '{',
          '}',
          '&a ',
          '*a',
          'metadata: ',
          '"',
          '\t',
          '<<: ',
        ),
      )
      .map((parts) => parts.join('')),
    nearText('manifests'),
  )
  t.doesNotThrow(() => {
    fc.assert(
      fc.property(texts, (text) => {
        const { objects, problems } = parseManifest(text, 'f')
        for (const problem of problems) if (!/^f:\d+: /.test(problem)) throw new Error(problem)
        mirrorEndpoints(objects)
      }),
      { numRuns: 500, examples: examplesOf(textsOf('manifests')) },
    )
  })
})

t.test('too many levels are a problem, and brackets in texts are no levels', async (t) => {
  // The reader of YAML would end the process where the stack overflows in a regular expression.
  const deep = ['{a: '.repeat(1000), '['.repeat(101), '- '.repeat(101), '? '.repeat(3000)]
  for (const text of deep) {
    const { problems } = parseManifest(`a: 1\n${text}`, 'f')
    t.same(problems, ['f:2: more than 100 levels are nested'])
  }
  const steps = Array.from({ length: 101 }, (_, index) => `${' '.repeat(index)}a:\n`)
  t.same(parseManifest(steps.join(''), 'f').problems, ['f:101: more than 100 levels are nested'])
  const colours = `script: "${'\\\\e[0m'.repeat(200)}"\ntext: |\n${'  a [\n'.repeat(200)}`
  const list = `items:\n${'- a: [1]\n  b: {c: 1}\n'.repeat(200)}`
  const text = `apiVersion: v1\nkind: ConfigMap\n${colours}${list}`
  t.same(parseManifest(text, 'f').problems, [])
})

t.test('an empty folder is an empty cluster', async (t) => {
  const sink = new RecordingSink()
  await new ManifestFolder({ path: t.testdir({}) }).load(sink)
  t.same(sink.told, ['synced Node', 'synced ServiceCIDR', 'synced Service', 'synced EndpointSlice'])
})

t.test('a template among the manifests is one problem, not a warning of the parser', async (t) => {
  const warnings: string[] = []
  const onWarning = ({ message }: Error) => warnings.push(message)
  process.on('warning', onWarning)
  t.teardown(() => process.off('warning', onWarning))
  const { problems } = parseManifest('name: {{ .Values.name }}\n', 'template.yaml')
  t.same(problems, ['template.yaml:1: apiVersion or kind is missing'])
  await new Promise((resolve) => setImmediate(resolve))
  t.same(warnings, [])
})
