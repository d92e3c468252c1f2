import t from 'tap'
import { configWith } from '../../lib/config/load.js'
import { RunningConfig } from '../../lib/config/running.js'
import { createLogger } from '../../lib/observe/logger.js'
import { Metrics } from '../../lib/observe/metrics.js'
import { objectObserver } from '../../lib/observe/object-observer.js'
import { Observation } from '../../lib/observe/observation.js'
import { parseService } from '../../lib/state/parse-service.js'
import { Tracker } from '../../lib/state/tracker.js'
import { trackerSettings } from '../../lib/config/tracker-settings.js'
import { rawService, rawSlice } from '../state/objects.js'
import { TrackerSink } from '../../lib/sources/tracker-sink.js'

function observed() {
  const lines: string[] = []
  const write = (line: string) => void lines.push(line)
  const log = createLogger({ format: 'json', verbosity: 0, isTerminal: false, write })
  const config = configWith({})
  const metrics = new Metrics({ mode: 'iptables', process: false })
  const observation = new Observation({
    ...{ running: new RunningConfig({ config, origins: new Map() }), metrics, log },
    ...{ mode: 'iptables', nodeName: 'n1', version: '', startedAt: 0, families: ['IPv4'] },
    tracker: { node: undefined },
    ...{ events: { record: () => undefined }, syncPeriodMs: 30_000, expectsNode: false },
  })
  const observer = objectObserver({ log, meter: metrics, observation, now: () => 0 })
  return { lines, config, observation, observer }
}

t.test('the log says of each warning what is true for it', async (t) => {
  const { lines, config, observation, observer } = observed()
  const node = { nodeName: 'n1', families: ['IPv4'] } as const
  const tracker = new Tracker(trackerSettings(config, 'iptables', node))
  const annotations = {
    'kube-proxy-ts/balance': 'maglev',
    'kube-proxy-ts/max-connections': '9',
    'kube-proxy-ts/health-check': 'nonsense',
  }
  const parsed = parseService(rawService({ annotations }))
  if (parsed.outcome !== 'accepted') throw new Error(parsed.outcome)
  // The object changes again and again.
  for (const warning of [...parsed.warnings, ...parsed.warnings]) {
    observer.warned('Service', parsed.value, warning)
  }
  const bad = { namespace: 'default', name: 'bad' }
  for (let times = 0; times < 2; times++) observer.malformed('Service', bad, 'no spec')
  tracker.upsertService(parsed.value)
  const update = tracker.take()
  const service = { namespace: 'default', name: 'web' }
  const others = (['AddressInUse', 'EndpointLeadsBack'] as const).map((event) => ({
    ...{ service, event, warning: event },
  }))
  observation.started({ ...update, warnings: [...update.warnings, ...others] })
  t.match(
    lines.map((line) => JSON.parse(line) as unknown),
    [
      { msg: 'part of an object has no effect', warning: /health-check: "nonsense"/ },
      { msg: 'object makes no sense and is skipped', name: 'bad' },
      {
        msg: 'endpoints are chosen in another way than a Service asks for',
        warning: /maglev is not what this mode does/,
      },
      {
        msg: 'an annotation of a Service cannot take effect here',
        warning: /iptables mode cannot do it/,
      },
      { msg: 'an address of a Service is not served', warning: 'AddressInUse' },
      { msg: 'an endpoint of a Service is not used', warning: 'EndpointLeadsBack' },
    ],
  )
})

t.test('a warning comes again when an object has the mistake again', async (t) => {
  const { lines, config, observer } = observed()
  const node = { nodeName: 'n1', families: ['IPv4'] } as const
  const tracker = new Tracker(trackerSettings(config, 'iptables', node))
  const sink = new TrackerSink(tracker, 'n1', { ...observer, changed: () => undefined })
  const bad = rawService({ annotations: { 'kube-proxy-ts/health-check': 'nonsense' } })
  const unlabelled = rawSlice({ service: '' })
  const take = () => {
    sink.upsert('Service', bad)
    sink.upsert('EndpointSlice', unlabelled)
  }
  take()
  take()
  t.equal(lines.length, 2, 'the same mistake is told once')
  sink.upsert('Service', rawService())
  sink.upsert('EndpointSlice', rawSlice())
  t.equal(lines.length, 2)
  take()
  t.equal(lines.length, 4, 'after it was corrected')
  sink.remove('Service', 'default', 'web')
  sink.remove('EndpointSlice', 'default', 'web-1')
  take()
  take()
  t.equal(lines.length, 6, 'and of a new object with the name of one that went')
})
