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
import { rawService } from '../state/objects.js'

t.test('the log says of each warning what is true for it', async (t) => {
  const lines: string[] = []
  const write = (line: string) => void lines.push(line)
  const log = createLogger({ format: 'json', verbosity: 0, isTerminal: false, write })
  const config = configWith({})
  const metrics = new Metrics({ mode: 'iptables', process: false })
  const observation = new Observation({
    ...{ running: new RunningConfig({ config, origins: new Map() }), metrics, log },
    ...{ mode: 'iptables', nodeName: 'n1', version: '', startedAt: 0, families: ['IPv4'] },
    ...{ events: { record: () => undefined }, syncPeriodMs: 30_000, expectsNode: false },
  })
  const observer = objectObserver({ log, meter: metrics, observation, now: () => 0 })
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
