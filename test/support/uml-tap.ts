import type { Test } from 'tap'
import { runInUml, type UmlOptions } from './uml.js'

/**
 * Runs a command that prints TAP inside User Mode Linux and repeats its results as assertions of
 * this test. A machine that hangs or dies, an exit code, or a plan that was not kept is a failure
 * with what the console said.
 */
export async function tapInUml(t: Test, command: string, options: UmlOptions = {}): Promise<void> {
  const seen = { results: 0, planned: -1 }
  let failure: { readonly name: string; readonly lines: string[] } | undefined
  const flush = () => {
    if (failure) t.fail(failure.name, { console: failure.lines.join('\n') })
    failure = undefined
  }
  const onLine = (line: string) => {
    const [, not, name = '', directive] =
      /^(not )?ok \d+ - ([^#]*)(#.*)?$/.exec(line) ?? ([] as (string | undefined)[])
    const plan = /^1\.\.(\d+)/.exec(line)
    if (/^(not )?ok \d/.test(line)) {
      flush()
      seen.results++
      const reason = /# (?:SKIP|TODO) ?(.*)/i.exec(directive ?? '')?.[1]
      if (not !== undefined) failure = { name: name.trim(), lines: [] }
      else t.pass(name.trim(), reason === undefined ? {} : { skip: reason })
    } else if (plan) {
      flush()
      // One command may run several programs, each with a plan.
      seen.planned = Math.max(seen.planned, 0) + Number(plan[1])
    } else failure?.lines.push(line)
  }
  const { code, output } = await runInUml(command, { ...options, onLine })
  flush()
  const tail = { console: output.split('\n').slice(-40).join('\n') }
  t.equal(seen.planned, seen.results, 'every planned test ended', tail)
  t.equal(code, 0, 'the command ended well', tail)
}
