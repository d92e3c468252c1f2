import { counter, gauge, histogram, type MetricSpec } from './metric-spec.js'

const family = ['ip_family']
const service = ['service', 'protocol']
const endpoint = ['service', 'protocol', 'endpoint']

/** Modes whose process carries the connections itself. */
const proxyModes = ['userspace', 'winuserspace'] as const

const dialBuckets = [0.0005, 0.002, 0.01, 0.05, 0.25, 1, 5]

/** Metrics that kube-proxy does not have. `service` is `namespace/name:port`. */
export const ownMetrics: readonly MetricSpec[] = [
  gauge(
    'mode_active',
    ['mode', 'requested'],
    'Always 1; the labels are the mode that runs and the mode that was requested',
  ),
  gauge(
    'first_sync_seconds',
    family,
    'Time from the start of the process to the first successful sync',
  ),
  counter('sync_failures_total', family, 'Syncs that failed, as a whole or for some service ports'),
  gauge(
    'service_ports_not_programmed',
    family,
    'Service ports that the last sync could not program although it programmed others',
  ),
  counter(
    'foreign_changes_total',
    [],
    'Times that the mode found its rules changed by somebody else and wrote everything anew',
  ),
  gauge(
    'config_file_valid',
    [],
    '1 if the file of --config is valid, or if there is none; 0 if it is wrong, and the last good one is in use',
  ),
  gauge(
    'config_keys_waiting_for_restart',
    [],
    'Keys of the file of --config whose new value needs a restart',
  ),
  counter('sync_written_bytes_total', family, 'Bytes or messages written to the kernel'),
  gauge('services', family, 'Service ports that are served'),
  counter(
    'malformed_objects_total',
    ['kind'],
    'Objects that were skipped because they are malformed',
  ),
  counter(
    'events_left_out_total',
    [],
    'Events that are not in the API server: 1,000 others were waiting, or it refused them, or it was away for two minutes',
  ),
  counter(
    'health_checks_total',
    ['outcome'],
    'Health checks of endpoints by outcome: good, bad, or unknown where this node could not check',
  ),
  gauge('endpoints_checked', [...service, ...family], 'Endpoints whose health this node checks'),
  gauge(
    'endpoints_failing',
    [...service, ...family],
    'Endpoints that fail their health check; they get no connections while others pass it',
  ),
  counter(
    'endpoint_health_changes_total',
    [...service, ...family, 'to'],
    'Times that endpoints began to fail their health check, or passed it again; to is failing or working',
  ),
  counter(
    'service_connections_total',
    endpoint,
    'Connections, or UDP clients, that were sent to the endpoint; docs/flows.md says which of them each mode counts',
  ),
  gauge('service_active_connections', service, 'Connections, or UDP clients, open now'),
  counter(
    'service_bytes_total',
    [...endpoint, 'direction'],
    'Bytes carried; direction is to_endpoint or to_client',
  ),
  counter(
    'service_packets_total',
    [...endpoint, 'direction'],
    'Packets carried, without connections that ebpf mode translates at the socket; direction is to_endpoint or to_client',
    { modes: ['iptables', 'ipvs', 'nftables', 'ebpf'] },
  ),
  counter(
    'flow_events_lost_total',
    [],
    'Times that the kernel lost events of connections for lack of room; the connections are then counted from its table, but the bytes of those that had ended are lost',
    { modes: ['userspace', 'iptables', 'ipvs', 'nftables', 'ebpf'] },
  ),
  counter(
    'flow_export_batches_total',
    ['signal', 'outcome'],
    'Batches for the OpenTelemetry collector; signal is logs or metrics, outcome is sent, refused (not tried again) or failed (tried again later)',
  ),
  counter(
    'flow_export_lines_lost_total',
    [],
    'Lines of the stream that the OpenTelemetry collector did not get: it refused them, or they were forgotten before it answered',
  ),
  counter('service_dial_errors_total', endpoint, 'Failed attempts to connect to the endpoint', {
    modes: [...proxyModes, 'ebpf'],
  }),
  counter(
    'service_retransmits_total',
    endpoint,
    'TCP segments that clients sent to the endpoint again',
    { modes: ['ebpf'] },
  ),
  counter(
    'service_round_trip_seconds_total',
    endpoint,
    'Sum of smoothed round-trip times to the endpoint, as clients measure them; divided by service_round_trips_total it is their mean',
    { modes: ['ebpf'] },
  ),
  counter(
    'service_round_trips_total',
    endpoint,
    'Round-trip times to the endpoint that were measured',
    { modes: ['ebpf'] },
  ),
  counter(
    'service_proxy_headers_refused_total',
    endpoint,
    'Connections that the endpoint ended without a byte after it got a PROXY header',
    { modes: proxyModes },
  ),
  counter(
    'service_endpoint_faults_total',
    [...endpoint, 'fault'],
    'Connections that the endpoint accepted but did not serve; fault is reset (at once, without a byte) or late (no first byte in the time of first-byte-timeout)',
    { modes: proxyModes },
  ),
  counter(
    'service_dead_connections_total',
    [...endpoint, 'side'],
    'Connections that were ended because one side did not answer any more; side is client or endpoint',
    { modes: proxyModes },
  ),
  histogram(
    'service_dial_duration_seconds',
    endpoint,
    'Time to connect to the endpoint; only a sample of the connections',
    { modes: proxyModes, buckets: dialBuckets },
  ),
  counter(
    'service_refused_connections_total',
    service,
    'Connections that were closed because no endpoint could be reached; refused at connect() in ebpf mode, and by a rule with --flows',
    { modes: [...proxyModes, 'iptables', 'ipvs', 'nftables', 'ebpf'] },
  ),
  counter(
    'service_dropped_connections_total',
    service,
    'With --flows, connections that a rule dropped because the client is in no source range of the load balancer, or because the traffic policy is Local and no endpoint is on this node',
    { modes: ['userspace', 'iptables', 'ipvs', 'nftables', 'ebpf'] },
  ),
  gauge('userspace_listeners', [], 'Listeners open now', { modes: proxyModes }),
  counter(
    'userspace_listen_failures_total',
    ['reason'],
    'Listeners that could not be opened; reason is the error code',
    { modes: proxyModes },
  ),
  counter(
    'userspace_descriptors_exhausted_total',
    [],
    'Times that a connection waited, or a datagram was dropped, because no file descriptor was free',
    { modes: proxyModes },
  ),
  gauge('ipvs_draining_servers', family, 'Removed real servers that still have connections', {
    modes: ['ipvs'],
  }),
]
