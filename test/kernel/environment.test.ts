import t from 'tap'
import { runCommand } from '../../lib/kernel/command.js'
import { runProgram, programEnvironment } from '../../lib/kernel/iptables/command.js'

/** Programs are found in the folders of scripts/setup too, whatever the search path of the user. */

t.test('/usr/sbin and /sbin are searched last, once, and the current folder never', (t) => {
  const pathOf = (PATH: string | undefined) =>
    programEnvironment(PATH === undefined ? {} : { PATH }).PATH
  t.equal(pathOf('/opt/bin:/usr/bin'), '/opt/bin:/usr/bin:/usr/sbin:/sbin')
  t.equal(pathOf('/usr/sbin:/usr/bin'), '/usr/sbin:/usr/bin:/sbin')
  t.equal(pathOf('/sbin:/usr/sbin'), '/sbin:/usr/sbin')
  t.equal(pathOf(''), '/usr/bin:/bin:/usr/sbin:/sbin')
  t.equal(pathOf(undefined), '/usr/bin:/bin:/usr/sbin:/sbin')
  t.match(programEnvironment({ LANG: 'de_DE', LC_ALL: 'de_DE' }), { LANG: 'de_DE', LC_ALL: 'C' })
  t.end()
})

t.test('both functions that run a program search these folders', async (t) => {
  const before = process.env.PATH
  process.env.PATH = '/usr/bin:/bin'
  t.teardown(() => (process.env.PATH = before))
  for (const run of [runCommand, runProgram]) {
    t.equal((await run('printenv', ['PATH'])).stdout.trim(), '/usr/bin:/bin:/usr/sbin:/sbin')
  }
})
