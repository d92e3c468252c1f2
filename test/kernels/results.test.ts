import t from 'tap'
import { columns } from './columns.js'
import { withTable } from './document.js'
import { commandFor, modes } from './parts.js'
import { Run } from './results.js'

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

const read = () => {
  const run = new Run({ kernel, accelerator: 'tcg', tools: 'own' })
  for (const line of printed.split('\n')) run.read(line)
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
