import type { MetricSpec } from './metric-spec.js'

const family = ['ip_family']
const service = ['service', 'protocol']
const endpoint = ['service', 'protocol', 'endpoint']

/** Modes that know what they carried: by their own sockets, or from the kernel's counters. */
const carriers = ['userspace', 'ipvs'] as const

const dialBuckets = [0.0005, 0.002, 0.01, 0.05, 0.25, 1, 5]

/** Ours: what an operator asks for and kube-proxy does not tell. `service` is `namespace/name:port`. */
export const ownMetrics: readonly MetricSpec[] = [
  {
    name: 'mode_active',
    type: 'gauge',
    labels: ['mode', 'requested'],
    help: 'Always 1: the mode that runs and the one that was asked for',
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
    name: 'sync_written_bytes_total',
    type: 'counter',
    labels: family,
    help: 'Bytes or messages handed to the kernel',
  },
  {
    name: 'services',
    type: 'gauge',
    labels: family,
    help: 'Service ports in force',
  },
  {
    name: 'malformed_objects_total',
    type: 'counter',
    labels: ['kind'],
    help: 'Objects that were skipped because they make no sense',
  },
  {
    name: 'service_connections_total',
    type: 'counter',
    labels: endpoint,
    modes: carriers,
    help: 'Connections, or UDP clients, that reached the endpoint',
  },
  {
    name: 'service_active_connections',
    type: 'gauge',
    labels: service,
    modes: carriers,
    help: 'Connections, or UDP clients, open now',
  },
  {
    name: 'service_bytes_total',
    type: 'counter',
    labels: [...endpoint, 'direction'],
    modes: carriers,
    help: 'Bytes carried; direction is to_endpoint or to_client',
  },
  {
    name: 'service_packets_total',
    type: 'counter',
    labels: [...endpoint, 'direction'],
    modes: ['ipvs'],
    help: 'Packets carried; direction is to_endpoint or to_client',
  },
  {
    name: 'service_dial_errors_total',
    type: 'counter',
    labels: endpoint,
    modes: ['userspace'],
    help: 'Attempts to reach the endpoint that failed',
  },
  {
    name: 'service_dial_duration_seconds',
    type: 'histogram',
    labels: endpoint,
    modes: ['userspace'],
    buckets: dialBuckets,
    help: 'Time to reach the endpoint; a sample',
  },
  {
    name: 'service_refused_connections_total',
    type: 'counter',
    labels: service,
    modes: ['userspace'],
    help: 'Connections closed without having reached an endpoint',
  },
  {
    name: 'userspace_listeners',
    type: 'gauge',
    labels: [],
    modes: ['userspace'],
    help: 'Listeners open now',
  },
  {
    name: 'userspace_listen_failures_total',
    type: 'counter',
    labels: ['reason'],
    modes: ['userspace'],
    help: 'Listeners that could not be opened, by the code of the error',
  },
  {
    name: 'userspace_descriptors_exhausted_total',
    type: 'counter',
    labels: [],
    modes: ['userspace'],
    help: 'Times that new connections had to wait, or datagrams were dropped, as no file descriptor was left',
  },
  {
    name: 'ipvs_draining_servers',
    type: 'gauge',
    labels: family,
    modes: ['ipvs'],
    help: 'Removed real servers that still finish connections',
  },
]
