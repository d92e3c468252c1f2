import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import fc from 'fast-check'

/**
 * Every run of a fuzz test begins with the files of one folder of `test/security/corpus`. An input
 * that once broke a parser is added there and stays.
 */
export const corpusFolder = fileURLToPath(new URL('../../../test/security/corpus', import.meta.url))

/** Each parser has a folder, and each folder has a test that reads it. */
export const corpora = [
  ...(['apiserver-object', 'apiserver-patch', 'apiserver-protobuf'] as const),
  ...(['apiserver-selector', 'balance', 'config', 'configz', 'endpointslice'] as const),
  ...(['failing-endpoints', 'flow-message', 'flows-answer', 'health-answer'] as const),
  ...(['hostile-text', 'http', 'ip', 'ipset-save', 'iptables-save'] as const),
  ...(['ipvs-connections', 'kubeconfig', 'manifests', 'metrics-page', 'netlink'] as const),
  ...(['nft-json', 'nft-listing', 'node', 'otlp-answer', 'packet', 'page-command'] as const),
  ...(['saved-counts', 'service', 'takeover', 'trace-line'] as const),
  ...(['watch', 'windows-addresses', 'words'] as const),
]
export type Corpus = (typeof corpora)[number]

/** The files of a folder, at least one. */
export function bytesOf(corpus: Corpus): readonly Buffer[] {
  const folder = join(corpusFolder, corpus)
  const files = readdirSync(folder).sort()
  if (files.length === 0) throw new Error(`${folder} has no file`)
  return files.map((name) => readFileSync(join(folder, name)))
}

export function textsOf(corpus: Corpus): readonly string[] {
  return bytesOf(corpus).map((bytes) => bytes.toString())
}

/** The files of a folder as JSON values. */
export function valuesOf(corpus: Corpus): readonly unknown[] {
  return textsOf(corpus).map((text): unknown => JSON.parse(text))
}

/** The values in the form that fast-check tries before random ones. */
export function examplesOf<T>(values: readonly T[]): [T][] {
  return values.map((value) => [value])
}

/**
 * A file of the corpus with parts left out, doubled or replaced. A parser reads further into such
 * input than into random bytes.
 */
export function near(corpus: Corpus): fc.Arbitrary<Buffer> {
  const edit = fc.record({
    at: fc.double({ min: 0, max: 1, noNaN: true }),
    without: fc.nat(8),
    instead: fc.oneof(
      fc.uint8Array({ maxLength: 8 }).map((bytes) => Buffer.from(bytes)),
      fc.constantFrom(...bytesOf(corpus)),
    ),
  })
  const begun = fc.constantFrom(...bytesOf(corpus))
  return fc.tuple(begun, fc.array(edit, { maxLength: 4 })).map(([bytes, edits]) =>
    edits.reduce((left, { at, without, instead }) => {
      const place = Math.floor(at * left.length)
      return Buffer.concat([left.subarray(0, place), instead, left.subarray(place + without)])
    }, bytes),
  )
}

export function nearText(corpus: Corpus): fc.Arbitrary<string> {
  return near(corpus).map((bytes) => bytes.toString())
}

const lastCharacter = 0x10ffff
/** Halves of characters in UTF-16, which are none by themselves. */
const surrogates = { first: 0xd800, count: 0x800 }

/** Any character that UTF-8 has. */
const anyCharacter = fc.integer({ min: 0, max: lastCharacter - surrogates.count }).map(
  (index) => String.fromCodePoint(index < surrogates.first ? index : index + surrogates.count),
  (text) => {
    const [code, ...more] = Array.from(String(text), (character) => character.codePointAt(0) ?? 0)
    if (code === undefined || more.length > 0) throw new Error('not one character')
    return code < surrogates.first ? code : code - surrogates.count
  },
)

/**
 * Any text, with those that break objects in JavaScript now and then. `unit: 'binary'` gives the
 * same, but its table of all characters takes each process a second.
 */
export function anyText(limits: fc.StringSharedConstraints = {}): fc.Arbitrary<string> {
  return fc.string({ ...limits, unit: anyCharacter })
}
