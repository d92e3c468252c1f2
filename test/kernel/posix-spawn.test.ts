/** Programs that are started quickly do what programs do that Node starts. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, readdirSync } from 'node:fs'
import t, { type Test } from 'tap'
import { startProgramsQuickly } from '../../lib/kernel/posix-spawn.js'
import { runProgram, type RunOptions } from '../../lib/kernel/iptables/command.js'
import { isIptablesError } from '../../lib/kernel/iptables/error.js'
import { startProgramsWith } from '../../lib/kernel/iptables/start.js'
import { isLinux } from '../../lib/platform.js'
import { untilTrue } from '../support/until.js'
import { blockFor } from '../support/block.js'

const shell = (script: string) => ['sh', '-c', script] as const
const large = 'x'.repeat(3_000_000)

/** What each does is told by `runProgram` alone: its result, or its error. */
const programs: Readonly<Record<string, readonly [readonly string[], RunOptions?]>> = {
  'its input comes back': [['cat'], { stdin: 'hällo\n' }],
  'output, complaints and the exit code': [shell('echo out; echo complaint >&2; exit 7')],
  'a signal ends it': [shell('kill -9 $$')],
  'it takes too long': [['sleep', '600'], { timeoutMs: 200 }],
  'it closes its streams long before it ends': [shell('exec >&- 2>&-; sleep 0.3; exit 3')],
  'it reads nothing of much input': [['true'], { stdin: large }],
  'it reads much input': [['wc', '-c'], { stdin: large }],
  'it prints much': [['head', '-c', '3000000', '/dev/zero']],
  'there is no such program': [['no-such-program']],
  'a file that is no program': [['/etc/passwd']],
  'arguments as they are': [['printf', '%s|', '', 'a b', '"$HOME"', '*', 'ü']],
  'no signal is ignored or blocked': [['grep', '-E', 'SigBlk|SigIgn', '/proc/self/status']],
  'descriptors above those of its streams': [['ls', '/proc/self/fd']],
  'an argument with a zero byte': [['printf', 'a\0b']],
}

async function outcome([program, options]: readonly [readonly string[], RunOptions?]) {
  const [file = '', ...args] = program
  try {
    return await runProgram(file, args, options)
  } catch (error) {
    return isIptablesError(error) ? { kind: error.kind, message: error.message } : { error }
  }
}

const allOutcomes = async () => {
  const each = Object.entries(programs).map(async ([name, given]) => [name, await outcome(given)])
  return Object.fromEntries(await Promise.all(each)) as Record<string, object>
}

const watchedByNode = () =>
  process.getActiveResourcesInfo().filter((kind) => kind === 'ProcessWrap').length

/** Whether Node itself watches a program that starts now. It may still watch one that has ended. */
const nodeWatches = async () => {
  const before = watchedByNode()
  const run = runProgram('sleep', ['0.1'])
  const watched = watchedByNode() > before
  await run
  return watched
}

const ownFiles = () => readdirSync('/proc/self/fd').length
const ownChildren = () => readFileSync(`/proc/self/task/${process.pid}/children`, 'utf8').trim()

/** A wrapper of iptables is such a script. */
async function timesOutBehindScript(t: Test) {
  let pid = 0
  const options = { timeoutMs: 5000, onOutput: (text: string) => (pid = Number(text)) }
  const error: unknown = await runProgram(...script, options).catch((cause: unknown) => cause)
  t.ok(isIptablesError(error, 'timed-out'))
  t.ok(pid > 0 && process.kill(pid, 'SIGKILL'), 'the program still has the streams')
}
const script = ['sh', ['-c', 'sleep 60 & echo $!; wait']] as const

t.test('a time-out does not wait for what a script has started', async (t) => {
  await timesOutBehindScript(t)
})

t.test('the same as with Node', isLinux() ? {} : { skip: 'Linux only' }, async (t) => {
  const byNode = await allOutcomes()
  t.ok(await nodeWatches())
  await startProgramsQuickly()
  t.notOk(await nodeWatches(), 'programs are started quickly now')
  const files = ownFiles()
  const quickly = await allOutcomes()
  for (const [name, outcome] of Object.entries(byNode)) {
    if (!/signal is ignored|zero byte/.test(name)) t.strictSame(quickly[name], outcome, name)
  }
  t.match(quickly['an argument with a zero byte'], { kind: 'failed', message: /zero byte/ })
  const signals = (quickly['no signal is ignored or blocked'] as { stdout: string }).stdout
  t.match(signals, /^SigBlk:\t0+$/m)
  t.match(signals, /^SigIgn:\t\d+[08]0{7}$/m, 'but those that the C library has for itself')
  t.equal(ownChildren(), '', 'no program is left')
  await untilTrue(() => ownFiles() === files)
  t.pass('no descriptor is left')
})

t.test(
  'many at a time, each with its own end',
  isLinux() ? {} : { skip: 'Linux only' },
  async (t) => {
    await startProgramsQuickly()
    const codes = Array.from({ length: 60 }, (_, index) => index)
    const ends = await Promise.all(
      codes.map((code) =>
        runProgram('sh', ['-c', `sleep 0.0${code % 10}; echo ${code}; exit ${code}`]),
      ),
    )
    t.strictSame(
      ends.map(({ code, stdout }) => [code, stdout]),
      codes.map((code) => [code, `${code}\n`]),
    )
  },
)

/** Without streams the end of the program is the only event of this process. */
const waiting = `
const { startProgramsQuickly } = await import(process.argv[1])
const { runProgram } = await import(process.argv[2])
await startProgramsQuickly()
setTimeout(() => process.exit(1), 300_000)
await runProgram('sh', ['-c', 'exec >&- 2>&-; sleep 0.1'])
process.exit(0)`

t.test('its end is known at once, also when nothing else happens', async (t) => {
  const modules = ['posix-spawn.js', 'iptables/command.js'].map(
    (file) => new URL(`../../lib/kernel/${file}`, import.meta.url).href,
  )
  const child = spawn(process.execPath, ['--input-type=module', '-e', waiting, ...modules])
  t.same(await once(child, 'exit'), [0, null])
})

t.test('a program that ends while this thread is held up did not take too long', async (t) => {
  const run = runProgram('true', [], { timeoutMs: 200 })
  blockFor(500)
  t.match(await run, { code: 0 })
})

t.test('a time-out waits for nothing, also when programs are started quickly', async (t) => {
  await startProgramsQuickly()
  await timesOutBehindScript(t)
})

t.test('where no more processes are allowed, the error says what to raise', async (t) => {
  startProgramsWith(() => {
    throw Object.assign(new Error('spawn iptables EAGAIN'), { code: 'EAGAIN' })
  })
  await t.rejects(runProgram('iptables', []), {
    kind: 'failed',
    message: /EAGAIN; no more processes are allowed, raise pids\.max/,
  })
})
