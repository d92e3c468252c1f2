import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { readCases } from '../conformance/case-file.js'
import { casesFolder } from '../conformance/cases-folder.js'
import { columns } from './columns.js'
import { withTable } from './document.js'
import { commandFor, coversSelection, modes } from './parts.js'
import { Results, Run, type KernelResult } from './results.js'

const kernel = {
  name: '6.12',
  release: '6.12.117+deb13-cloud-amd64',
  version: '6.12.117-1',
  suite: 'trixie',
  image: '',
  initramfs: '',
  modules: '',
}

/** The output of a guest, with everything that can happen to a mode. */
const printed = `# version nftables v1.0.6 (Lester Gooch #5)
TAP version 14
# Subtest: ipvs: probe
    ok 1 - inside says nothing
ok 1 - ipvs: probe # time=6354.905ms
ok 2 - ipvs: load # time=6270.893ms
not ok 3 - ipvs: cleanup # time=3ms
ok 4 - ipvs: hand-over # SKIP this kernel cannot run nftables
# ebpf cannot run: kernel 5.18 or newer: 5.10.0
ok 5 - ebpf: probe # time=3ms
# packets of ipvs
ok 1 - ipvs: affinity: S21: a client stays # time=3ms
ok 2 - ipvs: nodeport: localhost # SKIP IP21: ipvs mode has no node ports on localhost
# packets of ebpf
not ok 3 - ebpf: clusterip: S28: SCTP # time=3ms
ok 4 - ebpf: clusterip: S01 # time=3ms`

const begun = { kernel, accelerator: 'tcg', tools: 'own' }
const reading = (text: string) => {
  const run = new Run(begun)
  for (const line of text.split('\n')) run.read(line)
  return run
}
const read = () => {
  const run = reading(printed)
  run.ended()
  return run
}
/** The cells of a run, without days and versions. */
const cellsOf = (run: Run) =>
  Object.fromEntries(
    Object.entries(run.result().modes).map(([mode, { cells, cases }]) => [
      mode,
      Object.fromEntries(
        Object.entries({ ...cells, ...cases }).map(([name, { seen }]) => [name, seen]),
      ),
    ]),
  )
const frame = `# Real kernels
<!-- written by npm run kernels: begin -->
| what was there |
<!-- written by npm run kernels: end -->
More.
`
/** Results of a day long ago. */
const longAgo = () =>
  Results.of(
    JSON.parse(
      JSON.stringify([read().result()]).replaceAll(/"date":"[^"]*"/g, '"date":"2001-02-03"'),
    ) as KernelResult[],
  )

t.test('cells say what the guest has printed', async (t) => {
  const run = read()
  t.strictSame(cellsOf(run), {
    ipvs: {
      ...{ probe: 'ok', load: 'ok', cleanup: 'failed', 'hand-over': '–' },
      'affinity: S21: a client stays': 'passed',
      'nodeport: localhost': 'skipped',
    },
    ebpf: { probe: 'no', 'clusterip: S28: SCTP': 'failed', 'clusterip: S01': 'passed' },
  })
  t.strictSame(run.result().versions, ['nftables v1.0.6 (Lester Gooch #5)'])
  t.strictSame(run.result().modes.ebpf?.cells.probe?.notes, [
    'ebpf cannot run: kernel 5.18 or newer: 5.10.0',
  ])
  t.equal(run.failures, 2)
})

t.test('the table replaces the one before, and leaves the text around it', async (t) => {
  const kernels = [{ ...read().result(), notes: ['written by hand'] }]
  const written = withTable(frame, { kernels })
  t.match(written, /^# Real kernels\n/)
  t.match(written, /\nMore\.\n$/)
  t.notMatch(written, 'what was there')
  t.match(written, '| ipvs | ok | ok | 1, 1 left out so far | – | failed |')
  t.match(written, '| ebpf | no |  | 1 failed of 2 so far |  |  |')
  t.match(written, '- failed: ebpf clusterip: S28: SCTP\n- written by hand\n')
  t.equal(withTable(written, { kernels }), written, 'and is the same again')
})

t.test('with --only a guest does packets of the chosen modes and nothing else', async (t) => {
  const only = (...texts: string[]) => commandFor({ modes: ['ipvs'], only: texts, parts: columns })
  t.match(only("it's"), `--mode ipvs --only 'it'\\''s'`)
  t.notMatch(only("it's"), 'inside/')
  t.match(
    only("it's"),
    /'--no-opt' '--no-sparkplug' '[^']*conformance\/main\.js'/,
    'by interpreter',
  )
  t.notMatch(commandFor({ modes, only: undefined, parts: ['load'] }), '--no-opt')
  t.match(only('others'), 'uml/inside/others.js')
  t.notMatch(only('others'), /conformance|ipvs-mode/)
  const all = commandFor({ modes, only: undefined, parts: columns })
  for (const mode of modes) t.match(all, new RegExp(`inside/modes.js'.* ${mode}`))
})

t.test('modules come one by one where the probe is to see it, else all at once', async (t) => {
  const modules = /modprobe -qa/
  t.notMatch(commandFor({ modes, only: undefined, parts: columns }), modules)
  const load = commandFor({ modes, only: undefined, parts: ['load'] })
  t.match(load, modules)
  t.notMatch(load, 'conformance', 'and packets are not played')
  t.notMatch(commandFor({ modes, only: undefined, parts: ['packets'] }), 'inside/modes.js')
})

t.test('a run of one cell keeps all others, in the file and on the page', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'kernels-'))
  t.teardown(() => rmSync(folder, { recursive: true }))
  const file = join(folder, 'kernels.json')
  t.strictSame(Results.read(file).kernels, [], 'nothing is kept at first')
  const other = { ...kernel, name: '6.1', release: '6.1.0-56-cloud-amd64' }
  const otherRun = new Run({ ...begun, kernel: other })
  otherRun.read('ok 1 - iptables: load')
  const earlier = longAgo()
  earlier.keep(otherRun)
  earlier.write(file)

  const cell = reading('ok 1 - ipvs: cleanup # time=3ms')
  cell.ended()
  const results = Results.read(file)
  results.keep(cell)
  results.keep(cell)
  results.write(file)
  const { kernels } = Results.read(file)
  t.match(kernels[0]?.modes, { iptables: { cells: { load: { seen: 'ok' } } } })
  const page = withTable(frame, { kernels })
  t.match(page, '### Linux 6.1.0-56-cloud-amd64\n')
  const day = '(2001-02-03)'
  t.match(page, `| ipvs | ok ${day} | ok ${day} | 1, 1 left out so far ${day} | – ${day} | ok |`)
  t.match(page, `| ebpf | no ${day} |  | 1 failed of 2 so far ${day} |  |  |`)
  t.match(page, '- ebpf cannot run: kernel 5.18')
  t.match(page, 'nftables v1.0.6', 'a run that has not asked keeps the versions')
})

t.test('a case of packets that is played again counts once, with its newest outcome', async (t) => {
  const results = longAgo()
  const run = reading('# packets of ebpf\nok 1 - ebpf: clusterip: S28: SCTP')
  results.keep(run)
  t.match(withTable(frame, results), '| ebpf | no (2001-02-03) |  | 2 so far (2001-02-03) |  |  |')
})

t.test('what another package of the kernel has shown stays, and says of which', async (t) => {
  const results = Results.of([read().result()])
  const run = new Run({ ...begun, kernel: { ...kernel, version: '6.12.200-1' } })
  run.read('ok 1 - ipvs: probe')
  results.keep(run)
  t.match(withTable(frame, results), '| ipvs | ok | ok (6.12.117-1) |')
})

t.test(
  'a run that is ended says in which cell, and is no word against an earlier one',
  async (t) => {
    const started = '# Subtest: ipvs: load\n    ok 1 - inside'
    t.match(reading(started).result().modes.ipvs?.cells.load, {
      seen: 'not over',
      notes: ['ipvs: load was not over: it was ended by hand'],
    })
    const hung = reading(started)
    hung.died('the machine hung')
    t.match(hung.result().modes.ipvs?.cells.load?.notes, [/: the machine hung$/])
    const over = reading(`${started}\nok 1 - ipvs: load`)
    t.equal(over.result().modes.ipvs?.cells.load?.seen, 'ok')
    const results = Results.of([read().result()])
    results.keep(hung)
    t.equal(results.kernels[0]?.modes.ipvs?.cells.load?.seen, 'ok')
  },
)

t.test('packets are whole once every selected case was played', async (t) => {
  t.notOk(coversSelection(['clusterip: S01']))
  const names = readCases(casesFolder).map(({ topic, name }) => `${topic}: ${name}`)
  t.ok(coversSelection(names.map((name) => name.replaceAll('#', '\\#'))))
})

t.test('docs/kernels.md shows what docs/kernels.json keeps', async (t) => {
  const page = readFileSync('docs/kernels.md', 'utf8')
  t.equal(withTable(page, Results.read('docs/kernels.json')), page)
})
