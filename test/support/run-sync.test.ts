import { spawnSync } from 'node:child_process'
import t from 'tap'
import { isLinux } from '../../lib/platform.js'
import { execSync, runSync } from './run-sync.js'

const skip = isLinux() ? false : 'only Linux has files in memory'
const large = 'x'.repeat(3_000_000)

t.test('a program that is run by runSync does what it does under Node', { skip }, (t) => {
  for (const [[file = '', ...args], input = ''] of [
    [['sh', '-c', 'echo out; echo complaint >&2; exit 7']],
    [['sh', '-c', 'kill -9 $$']],
    [['sh', '-c', 'echo "$PATH"; ls /proc/self/fd']],
    [['cat'], 'hällo\n'],
    [['cat']],
    [['wc', '-c'], large],
    [['seq', '100000']],
    [['printf', '%s|', '', 'a b', '$HOME', '*', 'ü']],
  ] as const) {
    const { status, stdout, stderr } = spawnSync(file, args, { encoding: 'utf8', input })
    t.same(runSync(file, args, input), { status, stdout, stderr }, [file, ...args].join(' '))
  }
  t.end()
})

t.test('execSync throws where a program fails or is not there', { skip }, (t) => {
  t.equal(execSync('cat', [], 'all of it'), 'all of it')
  t.throws(() => execSync('sh', ['-c', 'echo why >&2; exit 3']), { status: 3, message: /why/ })
  t.throws(() => execSync('sh', ['-c', 'kill -9 $$']), { message: /kill/ })
  t.throws(() => execSync('no-such-program'), { message: /no-such-program ENOENT/ })
  t.end()
})
