import { keysOf } from './key.js'
import { logDurationKind, quantityKind, verbosityKind, vmoduleKind, type VModule } from './kinds.js'

const health = keysOf('Health and metrics')
const logging = keysOf('Logging', { overFile: true })

const atOnce = 'lines are written at once, to one stream'

/** Health answers, metrics, the dashboard and the log. */
export const observeKeys = {
  healthzBindAddress: health.string(
    '0.0.0.0:10256',
    'IP:port of /healthz, /livez and /readyz; an empty flag switches them off',
    { flags: ['healthz-bind-address'], zeroIsDefault: true, live: true },
  ),
  metricsBindAddress: health.string(
    '127.0.0.1:10249',
    'IP:port of /metrics and /configz; an empty flag switches them off',
    { flags: ['metrics-bind-address'], zeroIsDefault: true, live: true },
  ),
  bindAddressHardFail: health.bool(
    false,
    'Exit when a health or metrics port cannot be opened, instead of trying again',
    { flags: ['bind-address-hard-fail'] },
  ),
  enableProfiling: health.bool(false, 'PUT /debug/flags/v changes the verbosity while running', {
    flags: ['profiling'],
    live: true,
  }),
  showHiddenMetricsForVersion: health.string('', 'Show metrics hidden since this version', {
    flags: ['show-hidden-metrics-for-version'],
    noEffect: 'no metric is hidden',
  }),
  dashboardAddress: health.string(
    '',
    'IP:port of a read-only page that shows the live state; empty: none',
    { flags: ['dashboard-address'], known: 'here' },
  ),
  dashboardTokenFile: health.path(
    '',
    'File with the token that viewers of the page must give; required unless on loopback',
    { flags: ['dashboard-token-file'], known: 'here' },
  ),
  dashboardTLSCertFile: health.path('', 'Certificate (PEM) of the page, for HTTPS', {
    flags: ['dashboard-tls-cert-file'],
    known: 'here',
  }),
  dashboardTLSKeyFile: health.path('', 'Private key (PEM) of that certificate', {
    flags: ['dashboard-tls-key-file'],
    known: 'here',
  }),

  'flows.enabled': health.bool(
    false,
    'Count connections, bytes and packets of every Service in every mode, and answer kube-proxy flows',
    { flags: ['flows'], known: 'here' },
  ),
  'flows.stateFile': health.path(
    '/run/kube-proxy-ts/flows.json',
    'File through which the numbers of connections outlive a restart; empty: none',
    { flags: ['flows-state-file'], known: 'here' },
  ),
  'flows.otlp.endpoint': health.string(
    '',
    'URL of an OpenTelemetry collector that gets connections and numbers by Service as OTLP/HTTP JSON, such as http://127.0.0.1:4318; empty: none',
    { flags: ['flows-otlp-endpoint'], known: 'here' },
  ),

  'logging.format': logging.choice(
    ['', 'text', 'json'],
    '',
    'Form of the log: text or json; empty: text on a terminal, json otherwise',
    { flags: ['logging-format'] },
  ),
  'logging.verbosity': logging.key(
    verbosityKind,
    0,
    'Verbosity of the log: 0: events and syncs; 4: details; 6: everything',
    { flags: ['v'], live: true },
  ),
  'logging.vmodule': logging.key<readonly VModule[]>(
    vmoduleKind,
    [],
    'Verbosity by source file pattern',
    { flags: ['vmodule'], noEffect: 'log lines carry no source file; use -v' },
  ),
  'logging.flushFrequency': logging.key(
    logDurationKind,
    5000,
    'Longest time until a line is written',
    { flags: ['log-flush-frequency'], zeroIsDefault: true, noEffect: atOnce },
  ),
  'logging.options.text.splitStream': logging.bool(false, 'Errors to stderr, the rest to stdout', {
    flags: ['log-text-split-stream'],
    noEffect: atOnce,
  }),
  'logging.options.text.infoBufferSize': logging.key(quantityKind, 0, 'Buffer of split streams', {
    flags: ['log-text-info-buffer-size'],
    noEffect: atOnce,
  }),
  'logging.options.json.splitStream': logging.bool(false, 'Errors to stderr, the rest to stdout', {
    flags: ['log-json-split-stream'],
    noEffect: atOnce,
  }),
  'logging.options.json.infoBufferSize': logging.key(quantityKind, 0, 'Buffer of split streams', {
    flags: ['log-json-info-buffer-size'],
    noEffect: atOnce,
  }),
}
