import t from 'tap'
import { columns } from './columns.js'
import { withTable } from './document.js'
import { commandFor, modes } from './parts.js'
import { Results, Run } from './results.js'

const kernel = {
  name: '6.12',
  release: '6.12.117+deb13-cloud-amd64',
  version: '6.12.117-1',
  suite: 'trixie',
  image: '',
  initramfs: '',
  modules: '',
}

/** What a guest prints, with all that can happen to a mode. */
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
const read = () => {
  const run = new Run(begun)
  for (const line of printed.split('\n')) run.read(line)
  run.ended()
  return run
}

t.test('cells say what the guest has printed', async (t) => {
  const run = read()
  const { modes, notes, versions } = run.result()
  t.strictSame(modes, {
    ipvs: {
      probe: 'ok',
      load: 'ok',
      cleanup: 'failed',
      'hand-over': '–',
      packets: '1, 1 not in this mode',
    },
    ebpf: { probe: 'no', packets: '1 failed of 2' },
  })
  t.strictSame(versions, ['nftables v1.0.6 (Lester Gooch #5)'])
  t.strictSame(notes, [
    'failed:  ipvs: cleanup',
    'ebpf cannot run: kernel 5.18 or newer: 5.10.0',
    'failed: ebpf ebpf: clusterip: S28: SCTP',
  ])
  t.equal(run.failures, 2)
})

t.test('the table replaces the one before, and leaves the text around it', async (t) => {
  const page = `# Real kernels
<!-- written by npm run kernels: begin -->
| what was there |
<!-- written by npm run kernels: end -->
More.
`
  const written = withTable(page, { runs: [read().result()] })
  t.match(written, /^# Real kernels\n/)
  t.match(written, /\nMore\.\n$/)
  t.notMatch(written, 'what was there')
  t.match(written, '| ipvs | ok | ok | 1, 1 not in this mode | – | failed |')
  t.match(written, '| ebpf | no |  | 1 failed of 2 |  |  |')
  t.equal(withTable(written, { runs: [read().result()] }), written, 'and is the same again')
})

t.test('with --only a guest does packets of the chosen modes and nothing else', async (t) => {
  const command = commandFor({ modes: ['ipvs'], only: ["it's"], parts: ['packets'] })
  t.match(command, `--mode ipvs --only 'it'\\''s'`)
  t.notMatch(command, 'inside/modes.js')
  const all = commandFor({ modes, only: undefined, parts: columns })
  for (const mode of modes) t.match(all, new RegExp(`inside/modes.js'.* ${mode}`))
})

t.test('a run that is ended by hand says how far it came', async (t) => {
  const run = new Run(begun)
  for (const line of printed.split('\n')) run.read(line)
  t.equal(run.result().modes.ebpf?.packets, '1 failed of 2 so far')
  t.equal(run.result().modes.ipvs?.packets, '1, 1 not in this mode', 'that mode was over')
})

t.test('a shorter run keeps what the one before has seen, with its day', async (t) => {
  const before = { ...read().result(), date: '2001-02-03' }
  const results = Results.of([before])
  const shorter = new Run(begun)
  for (const line of ['ok 1 - ipvs: cleanup # time=3ms', '# packets of userspace', 'ok 1 - S01']) {
    shorter.read(line)
  }
  shorter.died('the machine hung')
  results.keep(shorter)
  const [kept] = results.runs
  t.match(kept?.modes, {
    ipvs: {
      probe: 'ok (2001-02-03)',
      cleanup: 'ok',
      packets: '1, 1 not in this mode (2001-02-03)',
    },
    ebpf: { probe: 'no (2001-02-03)' },
    userspace: { packets: '1 so far' },
  })
  t.strictSame(kept?.versions, before.versions)
  t.match(kept?.notes, [/^ebpf cannot run/, /^failed: ebpf/, /^the run is not whole: the machine/])
  results.keep(read())
  t.notMatch(results.runs[0]?.notes.join(), 'not whole')
})

t.test('another version of a kernel begins anew', async (t) => {
  const results = Results.of([{ ...read().result(), version: '6.12.1-1' }])
  const run = new Run(begun)
  run.read('ok 1 - ipvs: probe')
  results.keep(run)
  t.strictSame(results.runs[0]?.modes, { ipvs: { probe: 'ok' } })
})
