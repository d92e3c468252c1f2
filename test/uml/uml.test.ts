import t from 'tap'
import { runInUml, umlSkip } from '../support/uml.js'

const needsUml = umlSkip ? { skip: umlSkip } : {}

t.test(
  'a command in User Mode Linux has IPVS, and its exit code comes back',
  needsUml,
  async (t) => {
    const result = await runInUml('modprobe ip_vs && cat /proc/net/ip_vs; echo done; exit 3')
    t.equal(result.code, 3)
    t.match(result.output, /IP Virtual Server version [^]*\ndone$/)
    t.notMatch(result.output, /ubd device/, 'what the kernel said while it booted is left out')
  },
)

t.test('a panic and a hang are failures that show the console', needsUml, async (t) => {
  await t.rejects(runInUml('echo before; echo c > /proc/sysrq-trigger; sleep 60'), {
    name: 'GuestError',
    message: /died before the command had ended[^]*Kernel panic/,
    console: /before/,
  })
  // A busy machine boots slowly, so the time grows until the command has said something.
  let said = ''
  for (let timeoutMs = 5000; !said.includes('still here') && timeoutMs < 200_000; timeoutMs *= 2) {
    const hang: unknown = await runInUml('echo still here; sleep 600', { timeoutMs }).catch(
      (error: unknown) => error,
    )
    said = hang instanceof Error ? hang.message : ''
    t.match(said, `did not end within ${timeoutMs} ms`)
  }
  t.match(said, 'still here')
})

t.test('the files of the host cannot be changed from inside', needsUml, async (t) => {
  const file = t.testdirName
  t.not((await runInUml(`touch '${file}'`)).code, 0)
})
