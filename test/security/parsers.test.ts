/**
 * Random input for parsers that no other test gives it. A parser returns a value, or throws an
 * error of this program that says what is wrong. An input that once broke one is a file in its
 * folder of `corpus`.
 */
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import fc from 'fast-check'
import t from 'tap'
import { askDaemon, failingEndpoints } from '../../lib/cli/seen-node.js'
import { createProgram } from '../../lib/cli/program.js'
import { normalizeArguments, parseFlags } from '../../lib/config/flags.js'
import { ConfigError } from '../../lib/errors.js'
import { savedSets } from '../../lib/kernel/ipset.js'
import { parseIpvsConnections } from '../../lib/kernel/ipvs/connections.js'
import { connectionsIn, daemonNumbers } from '../../lib/inspect/top/daemon-numbers.js'
import { parseTraceLine } from '../../lib/inspect/trace/events.js'
import { listedRules } from '../../lib/kernel/nftables/nft.js'
import { rememberedIn } from '../../lib/kernel/nftables/remembered-json.js'
import { readListeners } from '../../lib/modes/userspace/takeover/protocol.js'
import { AddressJournal } from '../../lib/kernel/windows/address-journal.js'
import { rejectedIn } from '../../lib/observe/otlp/delivery.js'
import { flowsAnswerIn } from '../../lib/observe/flows/answer.js'
import { flowText } from '../../lib/observe/flows/text.js'
import { loadCounts, saveCounts } from '../../lib/observe/flows/saved-counts.js'
import { parsePageCommand } from '../../lib/page/commands.js'
import { parseRetryAfter } from '../../lib/sources/backoff.js'
import { grpcAnswer } from '../../lib/sources/health/grpc-answer.js'
import { httpAnswer } from '../../lib/sources/health/outcome.js'
import { asObject, parseJson } from '../../lib/state/json.js'
import {
  anyText,
  corpora,
  corpusFolder,
  examplesOf,
  nearText,
  textsOf,
  type Corpus,
} from '../support/corpus.js'
import { readJsonLines, UnreadableLine } from '../../lib/sources/json-lines.js'
import { readKubeconfig } from '../../lib/sources/kubeconfig-file.js'

const place = mkdtempSync(join(tmpdir(), 'parsers-'))
t.teardown(() => rmSync(place, { recursive: true, force: true }))
const file = join(place, 'file')
const tests = fileURLToPath(new URL('../../../test', import.meta.url))

async function lines(text: string): Promise<void> {
  const bytes = Buffer.from(text)
  const half = bytes.length >> 1
  const chunks = async function* () {
    yield* await Promise.resolve([bytes.subarray(0, half), bytes.subarray(half)])
  }
  const values = readJsonLines(chunks())[Symbol.asyncIterator]()
  while ((await values.next()).done !== true);
}

const affinity = { name: 'affinity', type: 'ipv4_addr' } as unknown as Parameters<
  typeof rememberedIn
>[2][number]

interface Parser {
  readonly parse: (text: string) => unknown
  /** Errors that it may throw. */
  readonly throws: (error: unknown) => boolean
}

const parsers = {
  kubeconfig: {
    parse: (text) => {
      writeFileSync(file, text)
      return readKubeconfig(file)
    },
    throws: (error) => error instanceof ConfigError,
  },
  watch: { parse: lines, throws: (error) => error instanceof UnreadableLine },
  'nft-json': {
    parse: (text) => rememberedIn(text, 'ip', [affinity]),
    // The text comes from nft. The caller takes a text that is no JSON as an empty memory.
    throws: (error) => error instanceof SyntaxError,
  },
  'nft-listing': { parse: listedRules, throws: () => false },
  takeover: {
    parse: (text) => readListeners({ text, descriptors: [3] }),
    throws: () => false,
  },
  // Another program may have the port of the proxy.
  'failing-endpoints': { parse: failingEndpoints, throws: () => false },
  configz: {
    parse: (text) => askDaemon({ name: '', get: () => Promise.resolve(text) }),
    throws: (error) => error instanceof ConfigError,
  },
  'flows-answer': {
    parse: (text) =>
      flowsAnswerIn(text)?.flows.map((flow) => flowText(flow, { isWide: true, isColoured: false })),
    throws: () => false,
  },
  'metrics-page': {
    parse: (text) => [daemonNumbers(text), connectionsIn(text)],
    throws: () => false,
  },
  'ipset-save': { parse: savedSets, throws: () => false },
  words: {
    parse: async (text) => {
      const argv = normalizeArguments(text.split(' '))
      const given = argv.map((word) => word.replace(/^-+/, '').split('=') as [string, string?])
      parseFlags(given.map(([name, value = '']) => [name, value] as const))
      await createProgram(argv)
    },
    throws: (error) =>
      error instanceof ConfigError || (error instanceof Error && 'exitCode' in error),
  },
  'page-command': { parse: parsePageCommand, throws: () => false },
  'saved-counts': {
    parse: async (text) => {
      await saveCounts(file, { heardUntil: 1, savedAt: 1, recent: [], counts: [], turnedAway: [] })
      // Counts are read only if they are of this version and kernel.
      const { version, kernel } = JSON.parse(readFileSync(file, 'utf8')) as Record<string, unknown>
      writeFileSync(file, JSON.stringify({ ...asObject(parseJson(text)), version, kernel }))
      await loadCounts(file)
      writeFileSync(file, text)
      await loadCounts(file)
    },
    throws: () => false,
  },
  'windows-addresses': {
    parse: (text) => {
      writeFileSync(file, text)
      return new AddressJournal(file).read()
    },
    throws: () => false,
  },
  // A pod sends this text. The reason is logged, so it must not contain the pod's words.
  'health-answer': {
    parse: (text) => {
      for (const outcome of [httpAnswer(text), grpcAnswer(Buffer.from(text, 'latin1'))])
        if (outcome && outcome.kind !== 'good' && !/^(answers|says)[\w ,/]+$/.test(outcome.reason))
          throw new Error(outcome.reason)
    },
    throws: () => false,
  },
  'trace-line': { parse: parseTraceLine, throws: () => false },
  'ipvs-connections': { parse: parseIpvsConnections, throws: () => false },
  'otlp-answer': {
    parse: (text) => [rejectedIn(text), parseRetryAfter(text, Date.now())],
    throws: () => false,
  },
} satisfies Partial<Record<Corpus, Parser>>

/** Names that parsers look for. */
const names = [
  ...['current-context', 'contexts', 'clusters', 'users', 'context', 'cluster', 'user', 'name'],
  ...['server', 'token', 'tokenFile', 'client-key-data', 'listeners', 'nftables', 'set', 'elem'],
  ...['val', 'expires', 'port', 'namespace', 'endpoint', 'type', 'object', '__proto__'],
]
const leaf = fc.oneof(
  fc.constantFrom<unknown>(
    '',
    'a',
    'affinity',
    'https://127.0.0.1',
    '10.0.0.1',
    null,
    0,
    -1,
    1e308,
  ),
  anyText({ maxLength: 20 }),
)
const tree = fc.letrec<{ value: unknown }>((tie) => ({
  value: fc.oneof(
    { maxDepth: 5, withCrossShrink: true },
    leaf,
    fc.array(tie('value'), { maxLength: 3 }),
    fc.dictionary(fc.constantFrom(...names), tie('value'), { maxKeys: 5 }),
  ),
})).value
const words = fc
  .array(
    fc.oneof(
      fc.constantFrom('--', '-v', '-v=9', '--mode', '--proxy-mode=', '--config=', 'render', 'help'),
      anyText({ maxLength: 8 }),
      fc.string({ maxLength: 8 }).map((text) => `--${text}`),
    ),
    { maxLength: 6 },
  )
  .map((list) => list.join(' '))
const texts = fc.oneof(
  tree.map((value) => JSON.stringify(value)),
  tree.map((value) => `${JSON.stringify(value)}\n{"half":`),
  words,
  anyText({ maxLength: 200 }),
)

async function endsWell({ parse, throws }: Parser, text: string): Promise<void> {
  try {
    await parse(text)
  } catch (error) {
    if (!throws(error)) throw error
  }
}

// Commander prints errors to stderr.
const silent = process.stderr.write.bind(process.stderr)
t.before(() => {
  process.stderr.write = () => true
})
t.after(() => {
  process.stderr.write = silent
})

for (const [name, parser] of Object.entries<Parser>(parsers)) {
  t.test(`${name}: any text gives a value or an error of this program`, async (t) => {
    const corpus = name as keyof typeof parsers
    await fc.assert(
      fc.asyncProperty(fc.oneof(texts, nearText(corpus)), (text) => endsWell(parser, text)),
      { numRuns: 400, examples: examplesOf(textsOf(corpus)) },
    )
    t.pass()
  })
}

t.test('every folder of the corpus is read by a test', async (t) => {
  t.same(readdirSync(corpusFolder).sort(), [...corpora].sort())
  const sources = readdirSync(tests, { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.test.ts'))
    .map((name) => readFileSync(join(tests, name), 'utf8'))
  for (const corpus of corpora) {
    const reads = ['bytesOf', 'textsOf', 'valuesOf'].map((name) => `${name}('${corpus}')`)
    const isRead = reads.some((words) => sources.some((text) => text.includes(words)))
    t.ok(corpus in parsers || isRead, corpus)
  }
})
