import t from 'tap'
import fc from 'fast-check'
import {
  appendFileSync,
  readFileSync,
  readdirSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Config } from '../../lib/config/config.js'
import { configurationMarkdown } from './document.js'
import { apiVersion, kind } from '../../lib/config/file.js'
import { parseFlags } from '../../lib/config/flags.js'
import { keyEntries } from '../../lib/config/keys.js'
import { configWith, defaultConfig, loadConfig } from '../../lib/config/load.js'
import { RunningConfig } from '../../lib/config/running.js'
import { watchConfig, type ConfigUpdate } from '../../lib/config/watch.js'
import { aborted } from '../../lib/async.js'
import { ConfigError } from '../../lib/errors.js'
import { metricsMarkdown } from '../observe/document.js'
import { faultGroups } from '../chaos/faults/index.js'
import { withPromises } from '../chaos/promises.js'
import { anyText, examplesOf, nearText, textsOf } from '../support/corpus.js'
import { refuseReading } from '../support/refused-reading.js'

const root = fileURLToPath(new URL('../../../', import.meta.url))
const load = (name: string, text: string) => loadConfig(parseFlags([]), { name, text })
const body = (text: string) => `apiVersion: ${apiVersion}\nkind: ${kind}\n${text}`

t.test('documents that are made from tables are up to date: npm run docs', async (t) => {
  t.equal(readFileSync(join(root, 'docs/configuration.md'), 'utf8'), configurationMarkdown())
  t.equal(readFileSync(join(root, 'docs/metrics.md'), 'utf8'), metricsMarkdown())
  const { withRooms } = (await import(join(root, 'scripts/rooms.mjs'))) as {
    withRooms: (text: string) => string
  }
  const architecture = readFileSync(join(root, 'docs/architecture.md'), 'utf8')
  t.equal(architecture, withRooms(architecture))
  const reliability = readFileSync(join(root, 'docs/reliability.md'), 'utf8')
  t.equal(reliability, withPromises(reliability, faultGroups))
})

t.test('every file of examples/config is accepted', async (t) => {
  const folder = join(root, 'examples/config')
  for (const file of readdirSync(folder)) {
    const { warnings } = load(file, readFileSync(join(folder, file), 'utf8'))
    if (file !== 'full.yaml') t.same(warnings, [], `${file} says nothing that is lost`)
  }
})

t.test(
  "section 11: kubeadm's file means the defaults; the full file sets every field",
  async (t) => {
    const read = (file: string) => readFileSync(join(root, 'examples/config', file), 'utf8')
    const kubeadm = load('k', read('kubeadm.yaml')).config
    t.same(kubeadm, {
      ...defaultConfig(),
      clusterCIDR: '10.244.0.0/16',
      clientConnection: {
        ...defaultConfig().clientConnection,
        kubeconfig: '/var/lib/kube-proxy/kubeconfig.conf',
      },
    })
    const { origins } = load('f', read('full.yaml'))
    for (const [path, key] of keyEntries) {
      if (key.known === '1.36') t.equal(origins.get(path)?.from, 'file', `${path} is in full.yaml`)
    }
  },
)

interface Told {
  readonly update: ConfigUpdate | undefined
  readonly invalid: string
}

/** Watches a file, and returns its reports one by one. */
async function watching(
  t: { teardown(act: () => Promise<void>): void },
  file: string,
  check: (config: Config) => void = () => undefined,
) {
  const told: Told[] = []
  let wake: () => void = () => undefined
  const tell = (item: Told) => {
    told.push(item)
    wake()
  }
  const stop = new AbortController()
  const running = watchConfig(
    {
      file,
      check,
      config: load(file, readFileSync(file, 'utf8')).config,
      load: (text) => load('kp.yaml', text),
      invalid: (invalid) => tell({ update: undefined, invalid }),
      valid: (update) => tell({ update, invalid: '' }),
      settleMs: 20,
      pollMs: 200,
    },
    stop.signal,
  )
  t.teardown(async () => {
    stop.abort()
    await running
  })
  const next = async (): Promise<Told> => {
    while (told.length === 0) await new Promise<void>((resolve) => (wake = resolve))
    return told.shift()!
  }
  const first = await next()
  return { first, next }
}

const nothing = { applied: [], waiting: [] }

t.test(
  'L19: of a changed file every value is reported: it is live, or it waits for a restart',
  async (t) => {
    const file = join(t.testdir({ 'kp.yaml': body('mode: ipvs\n') }), 'kp.yaml')
    const { first, next } = await watching(t, file)
    t.match(first.update, nothing, 'the file of the start changes nothing')
    writeFileSync(file, body('# only a comment\nmode: ipvs\n'))
    t.match((await next()).update, nothing)
    writeFileSync(file, body('mode: nftables\nlogging: {verbosity: 4}\n'))
    const { update } = await next()
    t.same(update?.applied, [{ path: 'logging.verbosity', from: 0, to: 4 }])
    t.same(update?.waiting, [{ path: 'mode', from: 'ipvs', to: 'nftables' }])
    t.match(update?.config, { mode: 'ipvs', logging: { verbosity: 4 } }, 'what runs from now on')
    writeFileSync(file, body('mode: nftables\nlogging: {verbosity: 5}\n'))
    const again = (await next()).update
    t.same(again?.applied, [{ path: 'logging.verbosity', from: 4, to: 5 }])
    t.same(again?.waiting, [{ path: 'mode', from: 'ipvs', to: 'nftables' }], 'it still waits')
    writeFileSync(file, body('mode: ipvs\nlogging: {verbosity: 5}\n'))
    t.match((await next()).update, nothing, 'what was taken back waits no longer')
  },
)

t.test('a file that is wrong, gone or half written is never used, and comes back', async (t) => {
  const file = join(t.testdir({ 'kp.yaml': body('mode: ipvs\n') }), 'kp.yaml')
  const { next } = await watching(t, file, ({ oomScoreAdj }) => {
    if (oomScoreAdj === 7) throw new ConfigError('this node cannot do that')
  })
  const good = body('mode: ipvs\noomScoreAdj: -5\n')
  for (const [text, message] of [
    [body('mode: ipvz\n'), /^kp\.yaml:3: mode: "ipvz"/],
    [body('mode: ipvs\nmode: ipvs\n'), /kp\.yaml:4: mode: the key is there twice/],
    [body('iptables: {syncPeriod: 5s, minSyncPeriod: 6s'), /kp\.yaml/],
    ['', /kp\.yaml/],
    [good.slice(0, 30), /kp\.yaml/],
    [good.padEnd(262_145, '#\n'), /^kp\.yaml: the file has 262145 characters; at most 262144 are/],
    [body('oomScoreAdj: 7\n'), /this node cannot do that/],
    // The file asks for nftables mode, which waits for a restart, but ipvs mode still runs.
    [body('mode: nftables\nipvs: {syncPeriod: 1s, minSyncPeriod: 2s}\n'), /ipvs\.minSyncPeriod/],
  ] as const) {
    writeFileSync(file, text)
    t.match((await next()).invalid, message)
  }
  rmSync(file)
  t.match((await next()).invalid, /cannot be read/)
  writeFileSync(file, good)
  t.same((await next()).update?.applied, [{ path: 'oomScoreAdj', from: -999, to: -5 }])
  rmSync(file)
  t.match((await next()).invalid, /cannot be read/)
  writeFileSync(file, good)
  t.match((await next()).update, nothing, 'the same file is good again')
  // A slow writer: the file changes again and again after it was first read.
  writeFileSync(file, body('mode: ipvs\n'))
  const more = setInterval(() => appendFileSync(file, '# more\n'), 5)
  await new Promise((resolve) => setTimeout(resolve, 200))
  clearInterval(more)
  writeFileSync(file, body('mode: ipvs\noomScoreAdj: -6\n'))
  t.same((await next()).update?.applied, [{ path: 'oomScoreAdj', from: -5, to: -6 }])
})

t.test('a file that cannot be reached for a moment is told, and then good again', async (t) => {
  const folder = t.testdir({ 'kp.yaml': body('mode: ipvs\n') })
  const file = join(folder, 'link')
  symlinkSync('kp.yaml', file)
  const { next } = await watching(t, file)
  symlinkSync('x'.repeat(300), join(folder, 'new'))
  renameSync(join(folder, 'new'), file)
  t.match((await next()).invalid, /link cannot be read: ENAMETOOLONG/)
  symlinkSync('kp.yaml', join(folder, 'new'))
  renameSync(join(folder, 'new'), file)
  t.match((await next()).update, nothing)
})

t.test('a file that cannot be read for want of descriptors is read later', async (t) => {
  const file = join(t.testdir({ 'kp.yaml': body('mode: ipvs\n') }), 'kp.yaml')
  const { next } = await watching(t, file)
  const allow = refuseReading(t)
  writeFileSync(file, body('mode: ipvs\noomScoreAdj: -5\n'))
  t.match((await next()).invalid, /kp\.yaml cannot be read: EMFILE/)
  allow()
  t.same((await next()).update?.applied, [{ path: 'oomScoreAdj', from: -999, to: -5 }])
})

t.test('a pipe is no file to follow, and nothing is said about it', async (t) => {
  const file = join(t.testdir({ kp: body('mode: ipvs\n') }), 'none')
  const told: string[] = []
  const stop = new AbortController()
  const running = watchConfig(
    {
      ...{ file, config: defaultConfig(), load: (text: string) => load(file, text) },
      ...{ settleMs: 1, pollMs: 10, check: () => undefined },
      invalid: (message) => told.push(message),
      valid: () => told.push('valid'),
    },
    stop.signal,
  )
  await new Promise((resolve) => setTimeout(resolve, 100))
  stop.abort()
  await running
  t.same(told, [])
})

t.test('L20: the symlink swap of a ConfigMap volume is noticed', async (t) => {
  const folder = t.testdir({
    '..1': { 'config.conf': body('mode: ipvs\n') },
    '..2': { 'config.conf': body('mode: iptables\n') },
  })
  symlinkSync('..1', join(folder, '..data'))
  symlinkSync('..data/config.conf', join(folder, 'config.conf'))
  const { next } = await watching(t, join(folder, 'config.conf'))
  symlinkSync('..2', join(folder, '..tmp'))
  renameSync(join(folder, '..tmp'), join(folder, '..data'))
  t.match((await next()).update?.waiting, [{ path: 'mode', from: 'ipvs', to: 'iptables' }])
})

t.test('work that reads a value begins anew when it changes, and only then', async (t) => {
  const at = (healthzBindAddress: string) => configWith({ healthzBindAddress })
  const origins = new Map()
  const running = new RunningConfig({ config: at('127.0.0.1:1'), origins })
  const use = (config: Config) => running.use({ config, origins, warnings: [], ...nothing })
  const seen: string[] = []
  const stop = new AbortController()
  const following = running.follow(
    ({ healthzBindAddress }) => healthzBindAddress,
    async (value, signal) => {
      seen.push(value)
      await aborted(signal)
    },
    stop.signal,
  )
  use(at('127.0.0.1:1'))
  use(at('127.0.0.1:2'))
  await new Promise(setImmediate)
  t.same(seen, ['127.0.0.1:1', '127.0.0.1:2'])
  stop.abort()
  await following
})

t.test('any text is accepted, or refused with a ConfigError', async (t) => {
  const paths = keyEntries.map(([path]) => path)
  const anything = fc.oneof(fc.jsonValue(), fc.double(), fc.constantFrom('30s', '10.0.0.0/8', -1))
  const files = fc.oneof(
    fc.string(),
    anyText().map((text) => body(text)),
    fc
      .dictionary(fc.constantFrom(...paths, 'x', '__proto__', 'constructor'), anything)
      .map((flat) => {
        const tree: Record<string, unknown> = { apiVersion, kind }
        for (const [path, value] of Object.entries(flat)) {
          const [section = '', ...rest] = path.split('.')
          Object.defineProperty(tree, section, {
            value: rest.length > 0 ? { [rest.join('.')]: value } : value,
            enumerable: true,
            configurable: true,
          })
        }
        return JSON.stringify(tree)
      }),
    nearText('config'),
  )
  t.doesNotThrow(() => {
    fc.assert(
      fc.property(files, (text) => {
        try {
          load('any.yaml', text)
        } catch (error) {
          if (!(error instanceof ConfigError)) throw error
          if (!error.message.startsWith('any.yaml')) throw new Error(`no place: ${error.message}`)
        }
      }),
      { numRuns: 500, examples: examplesOf(textsOf('config')) },
    )
  })
})
