import type { MetricSpec } from './metric-spec.js'

const family = ['ip_family']
const service = ['service', 'protocol']
const endpoint = ['service', 'protocol', 'endpoint']

/** Modes whose process carries the connections itself. */
const proxyModes = ['userspace', 'winuserspace'] as const

const dialBuckets = [0.0005, 0.002, 0.01, 0.05, 0.25, 1, 5]

/** Metrics that kube-proxy does not have. `service` is `namespace/name:port`. */
export const ownMetrics: readonly MetricSpec[] = [
  {
    name: 'mode_active',
    type: 'gauge',
    labels: ['mode', 'requested'],
    help: 'Always 1; the labels are the mode that runs and the mode that was requested',
  },
  {
    name: 'first_sync_seconds',
    type: 'gauge',
    labels: family,
    help: 'Time from the start of the process to the first successful sync',
  },
  {
    name: 'sync_failures_total',
    type: 'counter',
    labels: family,
    help: 'Syncs that failed, as a whole or for some service ports',
  },
  {
    name: 'service_ports_not_programmed',
    type: 'gauge',
    labels: family,
    help: 'Service ports that the last sync could not program although it programmed others',
  },
  {
    name: 'foreign_changes_total',
    type: 'counter',
    labels: [],
    help: 'Times that the mode found its rules changed by somebody else and wrote everything anew',
  },
  {
    name: 'config_file_valid',
    type: 'gauge',
    labels: [],
    help: '1 if the file of --config is valid, or if there is none; 0 if it is wrong, and the last good one is in use',
  },
  {
    name: 'config_keys_waiting_for_restart',
    type: 'gauge',
    labels: [],
    help: 'Keys of the file of --config whose new value needs a restart',
  },
  {
    name: 'sync_written_bytes_total',
    type: 'counter',
    labels: family,
    help: 'Bytes or messages written to the kernel',
  },
  {
    name: 'services',
    type: 'gauge',
    labels: family,
    help: 'Service ports that are served',
  },
  {
    name: 'malformed_objects_total',
    type: 'counter',
    labels: ['kind'],
    help: 'Objects that were skipped because they are malformed',
  },
  {
    name: 'events_left_out_total',
    type: 'counter',
    labels: [],
    help: 'Events that are not in the API server: 1,000 others were waiting, or it refused them, or it was away for two minutes',
  },
  {
    name: 'health_checks_total',
    type: 'counter',
    labels: ['outcome'],
    help: 'Health checks of endpoints by outcome: good, bad, or unknown where this node could not check',
  },
  {
    name: 'endpoints_checked',
    type: 'gauge',
    labels: [...service, ...family],
    help: 'Endpoints whose health this node checks',
  },
  {
    name: 'endpoints_failing',
    type: 'gauge',
    labels: [...service, ...family],
    help: 'Endpoints that fail their health check; they get no connections while others pass it',
  },
  {
    name: 'endpoint_health_changes_total',
    type: 'counter',
    labels: [...service, ...family, 'to'],
    help: 'Times that endpoints began to fail their health check, or passed it again; to is failing or working',
  },
  {
    name: 'service_connections_total',
    type: 'counter',
    labels: endpoint,
    help: 'Connections, or UDP clients, that were sent to the endpoint; docs/flows.md says which of them each mode counts',
  },
  {
    name: 'service_active_connections',
    type: 'gauge',
    labels: service,
    help: 'Connections, or UDP clients, open now',
  },
  {
    name: 'service_bytes_total',
    type: 'counter',
    labels: [...endpoint, 'direction'],
    help: 'Bytes carried; direction is to_endpoint or to_client',
  },
  {
    name: 'service_packets_total',
    type: 'counter',
    labels: [...endpoint, 'direction'],
    modes: ['iptables', 'ipvs', 'nftables', 'ebpf'],
    help: 'Packets carried, without connections that ebpf mode translates at the socket; direction is to_endpoint or to_client',
  },
  {
    name: 'flow_events_lost_total',
    type: 'counter',
    labels: [],
    modes: ['userspace', 'iptables', 'ipvs', 'nftables', 'ebpf'],
    help: 'Times that the kernel lost events of connections for lack of room; the connections are then counted from its table, but the bytes of those that had ended are lost',
  },
  {
    name: 'flow_export_batches_total',
    type: 'counter',
    labels: ['signal', 'outcome'],
    help: 'Batches for the OpenTelemetry collector; signal is logs or metrics, outcome is sent, refused (not tried again) or failed (tried again later)',
  },
  {
    name: 'flow_export_lines_lost_total',
    type: 'counter',
    labels: [],
    help: 'Lines of the stream that the OpenTelemetry collector did not get: it refused them, or they were forgotten before it answered',
  },
  {
    name: 'service_dial_errors_total',
    type: 'counter',
    labels: endpoint,
    modes: [...proxyModes, 'ebpf'],
    help: 'Failed attempts to connect to the endpoint',
  },
  {
    name: 'service_retransmits_total',
    type: 'counter',
    labels: endpoint,
    modes: ['ebpf'],
    help: 'TCP segments that clients sent to the endpoint again',
  },
  {
    name: 'service_round_trip_seconds_total',
    type: 'counter',
    labels: endpoint,
    modes: ['ebpf'],
    help: 'Sum of smoothed round-trip times to the endpoint, as clients measure them; divided by service_round_trips_total it is their mean',
  },
  {
    name: 'service_round_trips_total',
    type: 'counter',
    labels: endpoint,
    modes: ['ebpf'],
    help: 'Round-trip times to the endpoint that were measured',
  },
  {
    name: 'service_proxy_headers_refused_total',
    type: 'counter',
    labels: endpoint,
    modes: proxyModes,
    help: 'Connections that the endpoint ended without a byte after it got a PROXY header',
  },
  {
    name: 'service_endpoint_faults_total',
    type: 'counter',
    labels: [...endpoint, 'fault'],
    modes: proxyModes,
    help: 'Connections that the endpoint accepted but did not serve; fault is reset (at once, without a byte) or late (no first byte in the time of first-byte-timeout)',
  },
  {
    name: 'service_dead_connections_total',
    type: 'counter',
    labels: [...endpoint, 'side'],
    modes: proxyModes,
    help: 'Connections that were ended because one side did not answer any more; side is client or endpoint',
  },
  {
    name: 'service_dial_duration_seconds',
    type: 'histogram',
    labels: endpoint,
    modes: proxyModes,
    buckets: dialBuckets,
    help: 'Time to connect to the endpoint; only a sample of the connections',
  },
  {
    name: 'service_refused_connections_total',
    type: 'counter',
    labels: service,
    modes: [...proxyModes, 'iptables', 'ipvs', 'nftables', 'ebpf'],
    help: 'Connections that were closed because no endpoint could be reached; refused at connect() in ebpf mode, and by a rule with --flows',
  },
  {
    name: 'service_dropped_connections_total',
    type: 'counter',
    labels: service,
    modes: ['userspace', 'iptables', 'ipvs', 'nftables', 'ebpf'],
    help: 'With --flows, connections that a rule dropped because the client is in no source range of the load balancer, or because the traffic policy is Local and no endpoint is on this node',
  },
  {
    name: 'userspace_listeners',
    type: 'gauge',
    labels: [],
    modes: proxyModes,
    help: 'Listeners open now',
  },
  {
    name: 'userspace_listen_failures_total',
    type: 'counter',
    labels: ['reason'],
    modes: proxyModes,
    help: 'Listeners that could not be opened; reason is the error code',
  },
  {
    name: 'userspace_descriptors_exhausted_total',
    type: 'counter',
    labels: [],
    modes: proxyModes,
    help: 'Times that a connection waited, or a datagram was dropped, because no file descriptor was free',
  },
  {
    name: 'ipvs_draining_servers',
    type: 'gauge',
    labels: family,
    modes: ['ipvs'],
    help: 'Removed real servers that still have connections',
  },
]
