import t from 'tap'
import { benchmarksMarkdown, type AreaReport } from '../../bench/support/markdown.js'
import { argumentsOf, parsePeer } from '../../bench/support/peers.js'
import { keepsTarget } from '../../bench/support/results.js'

const report: AreaReport = {
  area: 'state',
  date: '2026-01-02T03:04:05Z',
  seconds: 9,
  load: 0.25,
  results: [
    { name: 'change', value: 12.345, unit: 'ms', target: '<= 15' },
    { name: 'throughput', value: 1234.5, unit: '/s', target: '>= 2000', note: 'a | b\nc' },
    { name: 'peer', value: NaN, unit: 'ms', note: 'did not answer' },
  ],
}

t.test('a result meets or misses its target, and without a number it misses', (t) => {
  const at = (value: number, target?: string) =>
    keepsTarget({ name: 'x', value, unit: 'ms', ...(target === undefined ? {} : { target }) })
  t.same(
    [at(15, '<= 15'), at(15.1, '<= 15'), at(0.5, '>= 0.5'), at(NaN, '<= 1')],
    [true, false, true, false],
  )
  t.equal(at(1), undefined)
  t.throws(() => at(1, 'about 3'), /not "about 3"/)
  t.end()
})

t.test('the page shows the machine, the results, and which targets are met', (t) => {
  const page = benchmarksMarkdown({ kernel: '6.1', Node: 'v20' }, [
    report,
    { ...report, area: 'ipvs', results: [], failure: 'no end after 300 s' },
  ])
  t.match(page, '| kernel | 6.1 |')
  t.match(page, 'Of 2 targets, 1 are kept.')
  t.match(page, '| change | 12.3 ms | <= 15 ms | yes |  |')
  t.match(page, '| throughput | 1,235 /s | >= 2000 /s | **no** | a   b c |')
  t.match(page, '| peer | none ms |  |  | did not answer |')
  t.match(page, 'Nothing was measured: no end after 300 s')
  t.end()
})

t.test('the command of a peer is split into words without a shell', (t) => {
  const peer = parsePeer("go=/opt/kube proxy --config 'a b' --node={node} $(id) --mode={mode}")
  t.equal(peer.name, 'go')
  t.same(argumentsOf(peer.command, { kubeconfig: '/k', node: 'n', mode: 'ipvs' }), [
    '/opt/kube',
    'proxy',
    '--config',
    'a b',
    '--node=n',
    '$(id)',
    '--mode=ipvs',
  ])
  t.throws(() => parsePeer('kube-proxy'), /expected NAME=COMMAND/)
  t.end()
})
