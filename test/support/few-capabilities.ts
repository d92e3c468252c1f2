import { execFileSync } from 'node:child_process'
import type { Test } from 'tap'

/** Loads the programs without CAP_PERFMON, because the kernel's verifier is then stricter. */
export function fewCapabilities(t: Test): void {
  const at = (path: string) => JSON.stringify(new URL(`../../lib/${path}`, import.meta.url))
  const code = `
    const { probeSockets } = await import(${at('modes/ebpf/probe.js')})
    const silent = () => undefined
    const log = { debug: silent, info: silent, warn: silent, error: silent }
    for (const sockets of ['all', 'node']) {
      const [programs] = probeSockets({ settings: { cgroup: '', bpffs: '', sockets }, log })
      console.log(programs.ok, programs.seen)
    }`
  const few = ['--inh-caps=-all', '--bounding-set=-all,+bpf,+net_admin']
  const node = [process.execPath, '--input-type=module', '-e', code]
  const printed = execFileSync('setpriv', [...few, ...node], { encoding: 'utf8' })
  t.equal(printed, 'true the kernel takes all 10\ntrue the kernel takes all 10\n')
}
