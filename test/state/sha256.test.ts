import { createHash } from 'node:crypto'
import fc from 'fast-check'
import t from 'tap'
import { sha256 } from '../../lib/state/sha256.js'
import { anyText } from '../support/corpus.js'

const known = (text: string) => createHash('sha256').update(text).digest('hex')
const hex = (bytes: Uint8Array) => Buffer.from(bytes).toString('hex')

t.test('sha256 is that of Node for every text', (t) => {
  for (const length of [0, 1, 54, 55, 56, 63, 64, 65, 119, 120, 1000]) {
    const text = 'x'.repeat(length)
    t.equal(hex(sha256(text)), known(text), `${length} bytes`)
  }
  fc.assert(fc.property(anyText(), (text) => hex(sha256(text)) === known(text)))
  t.end()
})
