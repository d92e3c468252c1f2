import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import type { AreaReport } from '../../bench/support/markdown.js'
import { netnsSkip } from '../support/netns.js'

const main = fileURLToPath(new URL('../../bench/support/area-main.js', import.meta.url))
const command = fileURLToPath(new URL('../../lib/cli/main.js', import.meta.url))

t.test(
  'a second proxy is measured in the same run, and a proxy that dies is named',
  { skip: netnsSkip },
  async (t) => {
    const folder = mkdtempSync(join(tmpdir(), 'bench-'))
    const file = join(folder, 'daemon.json')
    const self = `self=${process.execPath} ${command} --kubeconfig {kubeconfig} --hostname-override {node} --proxy-mode {mode} --cluster-cidr 10.244.0.0/16`
    const env = {
      ...process.env,
      ...{ BENCH_SERVICES: '5', BENCH_CHANGES: '2', BENCH_MODES: 'nftables' },
      ...{ BENCH_BUSY_SECONDS: '1', BENCH_BURST_SECONDS: '1' },
    }
    const dead = `dead=${process.execPath} --eval "throw new Error('not today')"`
    try {
      const child = spawn(process.execPath, [main, 'daemon', file, self, dead], { env })
      let output = ''
      child.stderr.setEncoding('utf8').on('data', (text: string) => (output += text))
      child.stdout.resume()
      const [code] = (await once(child, 'close')) as [number]
      t.equal(code, 0, output)
      const { results } = JSON.parse(readFileSync(file, 'utf8')) as AreaReport
      const of = (name: string) =>
        results.filter((result) => result.name.startsWith(`${name}, nftables`))
      for (const name of ['ours', 'self']) {
        t.equal(of(name).length, 14, name)
        for (const { name: what, value } of of(name)) t.ok(value >= 0 && value < 60_000, what)
      }
      t.match(of('self')[1]?.note, /of ours$/)
      const failure = { value: null, note: /not today/ }
      t.match(of('dead'), [failure, failure])
    } finally {
      rmSync(folder, { recursive: true })
    }
  },
)
