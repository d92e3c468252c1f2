/** Checks that the suite can fail: it must notice proxies with one flaw each. */
import t from 'tap'
import { createWorld } from '../../lib/lab/world/world.js'
import { parseCases, readCases } from './case-file.js'
import { casesFolder } from './cases-folder.js'
import { skips, withoutSctp } from './mode-profiles.js'
import { ProcessSubject } from './process-subject.js'
import { flaws } from './reference-proxy.js'
import type { Flaw } from './reference-proxy.js'
import { tapLine } from './report.js'
import { runCases } from './runner.js'

const skip = process.getuid?.() === 0 ? false : 'network namespaces need root'

/** The case that shows each flaw. */
const telltales: Readonly<Record<Flaw, string>> = {
  'wrong-endpoints': 'E11: ready endpoints are preferred to terminating ones',
  'one-endpoint': 'S01 S07: every client reaches every ready endpoint, in both families',
  uneven: 'IT31 NF14: connections are spread evenly over three endpoints',
  'no-masquerade': 'S24: a pod that reaches itself through its Service is masqueraded',
  'masquerades-all': 'e2e service.go:1020: a pod of this node keeps its source address',
  'no-reject': 'S19: a node port without endpoints is refused',
  'reject-for-drop': 'S16: internal policy Local with endpoints on other nodes only is dropped',
  'no-affinity':
    'S21 e2e service.go:2229: with affinity a client stays with one endpoint of a ClusterIP',
  'ignores-local-policy':
    "S17 e2e service.go:2771: external policy Local on a node port keeps the client's address",
  'no-ranges': 'S12 S13: source ranges let in only the named clients',
  'no-external-ips': "e2e service.go:1313: an external IP that is not the node's is served",
  'keeps-stale-flows':
    'CT01 CT15 e2e conntrack.go:140: UDP: a client of a ClusterIP moves on when its endpoint is replaced',
  'forwards-invalid':
    'CT16 e2e conntrack.go:552: a packet that fits no window does not reset its connection',
}

await t.test('the suite catches wrong proxies', { skip }, async (t) => {
  const wanted = Object.values(telltales)
  const cases = readCases(casesFolder).filter(({ name }) => wanted.includes(name))
  t.equal(cases.length, wanted.length, 'every telltale is a case')
  const world = await createWorld({ name: 'selftest' })
  t.teardown(() => world.close())
  const run = (subject: string, only: (name: string) => boolean, replyMs?: number) =>
    runCases({
      world,
      subject: new ProcessSubject(subject),
      cases: cases.filter(({ name }) => only(name)),
      mode: undefined,
      ...(replyMs === undefined ? {} : { replyMs }),
      skips: [...skips.nftables, withoutSctp],
    })

  for (const result of await run('reference', () => true)) {
    t.equal(result.outcome, 'passed', `a right proxy passes: ${tapLine(0, '', result)}`)
  }
  for (const flaw of flaws) {
    await t.test(`a proxy with the flaw ${flaw} is caught`, async (t) => {
      // A short wait, because some replies never come here.
      const only = (name: string) => name === telltales[flaw]
      const [result] = await run(`reference:${flaw}`, only, 12_000)
      t.equal(result?.outcome, 'failed', telltales[flaw])
      t.comment(...(result?.failures ?? []).slice(0, 2))
    })
  }
})

await t.test('a case with an unknown key is an error', (t) => {
  const parse = (text: string) => () => parseCases('sample', text)
  const services = 'services: { web: { endpoints: [pod-1] } }'
  const flows = 'flows: [{ from: node, gets: [pod-1] }]'
  t.equal(parseCases('sample', `[{ case: 'S01: x', ${services}, ${flows} }]`).length, 1)
  const mistakes: readonly (readonly [string, RegExp])[] = [
    [`[{ case: 'x', ${services}, ${flows} }]`, /starts with the IDs/],
    [`[{ case: 'S01: x', ${services} }]`, /expects no flow/],
    [`[{ case: 'S01: x', ${services}, flows: [{ from: node }] }]`, /what it gets/],
    [
      `[{ case: 'S01: x', ${services}, flows: [{ from: nod, gets: refused }] }]`,
      /nobody is called/,
    ],
    [`[{ case: 'S01: x', ${services}, flows: [{ form: node, gets: refused }] }]`, /key form/],
    [`[{ case: 'S01: x', service: {}, ${flows} }]`, /key service/],
    [`[{ case: 'S01: x', services: { web: { endpoint: [] } }, ${flows} }]`, /key endpoint/],
    [
      `[{ case: 'S01: x', ${services}, ${flows} }, { case: 'S01: x', ${services}, ${flows} }]`,
      /same name/,
    ],
  ]
  for (const [text, message] of mistakes) t.throws(parse(text), { message })
  t.end()
})

await t.test('a mapping of a case may begin with another one', (t) => {
  const services =
    "{ web: { annotations: &some { a: '1' } }, db: { annotations: { <<: *some, b: '2' } } }"
  const [one] = parseCases(
    'sample',
    `[{ case: 'S01: x', services: ${services}, flows: [{ from: node, gets: refused }] }]`,
  )
  t.same(one?.steps[0]?.services.db, { annotations: { a: '1', b: '2' } })
  t.end()
})

await t.test('the cases cover every kind of client, address and protocol', (t) => {
  const cases = readCases(casesFolder)
  t.ok(cases.length >= 120, `${cases.length} cases`)
  const flows = cases.flatMap(({ steps }) => steps.flatMap((step) => step.flows))
  const clients = new Set(flows.flatMap(({ from }) => from.map(({ place }) => place)))
  t.ok(
    (['client-pod', 'pod-1', 'node', 'remote-pod', 'outside'] as const).every((place) =>
      clients.has(place),
    ),
    'from everywhere',
  )
  const targets = new Set(flows.flatMap(({ to }) => to))
  t.ok(
    (['cluster', 'node', 'localhost', 'load-balancer', 'external'] as const).every((target) =>
      targets.has(target),
    ),
    'to everywhere',
  )
  t.end()
})
