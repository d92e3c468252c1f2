import t from 'tap'
import fc from 'fast-check'
import { readFileSync, readdirSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Config } from '../../lib/config/config.js'
import { configurationMarkdown } from '../../lib/config/document.js'
import { apiVersion, kind } from '../../lib/config/file.js'
import { parseFlags } from '../../lib/config/flags.js'
import { keyEntries } from '../../lib/config/keys.js'
import { loadConfig } from '../../lib/config/load.js'
import { watchConfig, type ConfigChange } from '../../lib/config/watch.js'
import { defaultConfig } from '../../lib/config/load.js'
import { ConfigError } from '../../lib/errors.js'
import { metricsMarkdown } from '../../lib/observe/document.js'
import { faultGroups } from '../chaos/faults/index.js'
import { withPromises } from '../chaos/promises.js'

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
  readonly changes: readonly ConfigChange[]
  readonly config: Config | undefined
  readonly invalid: string
}

/** Watches a file, and returns its reports one by one. */
function watching(t: { teardown(act: () => Promise<void>): void }, file: string) {
  const told: Told[] = []
  const texts: string[] = []
  let wake: () => void = () => undefined
  const tell = (item: Told) => {
    told.push(item)
    wake()
  }
  const stop = new AbortController()
  const running = watchConfig(
    {
      file,
      loaded: load(file, readFileSync(file, 'utf8')),
      load: (text) => {
        texts.push(text)
        wake()
        return load('kp.yaml', text)
      },
      invalid: (invalid) => tell({ changes: [], config: undefined, invalid }),
      changed: (changes, config) => tell({ changes, config, invalid: '' }),
      settleMs: 20,
      pollMs: 200,
    },
    stop.signal,
  )
  t.teardown(async () => {
    stop.abort()
    await running
  })
  return {
    told,
    /** Resolves once a text that contains this was read. */
    looked: async (part: string): Promise<void> => {
      while (!texts.some((text) => text.includes(part))) {
        await new Promise<void>((resolve) => (wake = resolve))
      }
    },
    next: async (): Promise<Told> => {
      while (told.length === 0) await new Promise<void>((resolve) => (wake = resolve))
      return told.shift()!
    },
  }
}

t.test('L19: a changed file is checked first, and every changed value is reported', async (t) => {
  const file = join(t.testdir({ 'kp.yaml': body('mode: ipvs\n') }), 'kp.yaml')
  const { told, next, looked } = watching(t, file)
  writeFileSync(file, body('mode: ipvz\n'))
  t.match((await next()).invalid, /^kp\.yaml:3: mode: "ipvz"/)
  writeFileSync(file, body('# only a comment\nmode: ipvs\n'))
  await looked('only a comment')
  writeFileSync(file, body('mode: ipvs\nlogging: {verbosity: 4}\n'))
  t.same((await next()).changes, [{ path: 'logging.verbosity', from: 0, to: 4, isLive: true }])
  rmSync(file)
  writeFileSync(`${file}.new`, body('mode: nftables\nlogging: {verbosity: 4}\n'))
  renameSync(`${file}.new`, file)
  const { changes, config } = await next()
  t.same(changes, [{ path: 'mode', from: 'ipvs', to: 'nftables', isLive: false }])
  t.equal(config?.mode, 'nftables')
  t.equal(told.length, 0, 'a comment changes nothing')
})

t.test('L20: the symlink swap of a ConfigMap volume is noticed', async (t) => {
  const folder = t.testdir({
    '..1': { 'config.conf': body('mode: ipvs\n') },
    '..2': { 'config.conf': body('mode: iptables\n') },
  })
  symlinkSync('..1', join(folder, '..data'))
  symlinkSync('..data/config.conf', join(folder, 'config.conf'))
  const { next } = watching(t, join(folder, 'config.conf'))
  symlinkSync('..2', join(folder, '..tmp'))
  renameSync(join(folder, '..tmp'), join(folder, '..data'))
  t.match((await next()).changes, [{ path: 'mode', from: 'ipvs', to: 'iptables' }])
})

t.test('any text is accepted, or refused with a ConfigError', async (t) => {
  const paths = keyEntries.map(([path]) => path)
  const anything = fc.oneof(fc.jsonValue(), fc.double(), fc.constantFrom('30s', '10.0.0.0/8', -1))
  const files = fc.oneof(
    fc.string(),
    fc.string({ unit: 'binary' }).map((text) => body(text)),
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
      { numRuns: 500 },
    )
  })
})
