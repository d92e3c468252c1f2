import { utimesSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { wasReadLately } from './debian-packages.js'

t.test('the lists of a suite are read again only after some hours', async (t) => {
  const read = join(t.testdir({ read: '' }), 'read')
  t.equal(wasReadLately(read), true)
  const yesterday = Date.now() / 1000 - 24 * 3600
  utimesSync(read, yesterday, yesterday)
  t.equal(wasReadLately(read), false)
  t.equal(wasReadLately(`${read}-never`), false)
})
