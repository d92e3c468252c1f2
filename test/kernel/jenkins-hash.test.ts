import t from 'tap'
import { jenkinsHash, sourceBucket } from '../../lib/kernel/jenkins-hash.js'

t.test('the hash is the published one', async (t) => {
  // These two values are from the author of lookup3.
  const text = Buffer.from('Four score and seven years ago')
  t.equal(jenkinsHash(text, 0), 0x17770551)
  t.equal(jenkinsHash(text, 1), 0xcd628161)
})

t.test('addresses of both families spread over all buckets', async (t) => {
  for (const prefix of ['10.0.0.', 'fd00::']) {
    const found = new Set(Array.from({ length: 99 }, (_, n) => sourceBucket(`${prefix}${n}`, 7)))
    t.same([...found].toSorted(), [0, 1, 2, 3, 4, 5, 6], prefix)
  }
  t.equal(sourceBucket('no address', 1), 0)
})
