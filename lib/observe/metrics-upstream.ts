import type { ModeName } from '../config/config.js'
import type { MetricSpec } from './metric-spec.js'

const family = ['ip_family']

/** 1 ms doubled 14 times. */
const syncBuckets = Array.from({ length: 15 }, (_, index) => 0.001 * 2 ** index)

const programmingBuckets = [
  0.25,
  0.5,
  ...range(1, 59, 1),
  ...range(60, 115, 5),
  ...range(120, 300, 30),
]

/** Metrics of every mode, with names, types, labels and buckets of kube-proxy 1.36 (section 15). */
export const commonMetrics: readonly MetricSpec[] = [
  {
    name: 'sync_proxy_rules_duration_seconds',
    type: 'histogram',
    labels: family,
    buckets: syncBuckets,
    help: 'Time that one sync took',
  },
  {
    name: 'sync_proxy_rules_last_timestamp_seconds',
    type: 'gauge',
    labels: family,
    help: 'Time of the last successful sync, in seconds since 1970',
  },
  {
    name: 'sync_proxy_rules_last_queued_timestamp_seconds',
    type: 'gauge',
    labels: family,
    help: 'Time of the last request for a sync, in seconds since 1970',
  },
  {
    name: 'network_programming_duration_seconds',
    type: 'histogram',
    labels: family,
    buckets: programmingBuckets,
    help: 'Time from the change of an endpoint until its rules are in the kernel',
  },
  {
    name: 'sync_proxy_rules_endpoint_changes_pending',
    type: 'gauge',
    labels: [],
    help: 'Changes of endpoints that are not synced yet',
  },
  {
    name: 'sync_proxy_rules_endpoint_changes_total',
    type: 'counter',
    labels: [],
    help: 'Changes of endpoints seen',
  },
  {
    name: 'sync_proxy_rules_service_changes_pending',
    type: 'gauge',
    labels: [],
    help: 'Changes of Services that are not synced yet',
  },
  {
    name: 'sync_proxy_rules_service_changes_total',
    type: 'counter',
    labels: [],
    help: 'Changes of Services seen',
  },
  {
    name: 'sync_proxy_rules_no_local_endpoints_total',
    type: 'gauge',
    labels: ['traffic_policy', ...family],
    help: 'Services with policy Local and no endpoint on this node',
  },
  {
    name: 'proxy_healthz_total',
    type: 'counter',
    labels: ['code'],
    help: 'Answers of /healthz',
  },
  {
    name: 'proxy_livez_total',
    type: 'counter',
    labels: ['code'],
    help: 'Answers of /livez',
  },
]

const iptables: readonly ModeName[] = ['iptables']
const rules: readonly ModeName[] = ['iptables', 'nftables', 'ebpf']
const tracked: readonly ModeName[] = ['iptables', 'ipvs', 'nftables', 'ebpf']

/** The packet path of ebpf mode is that of nftables mode. */
const withTables: readonly ModeName[] = ['nftables', 'ebpf']

/** Metrics of the kernel modes, as in kube-proxy 1.36. */
export const kernelModeMetrics: readonly MetricSpec[] = [
  {
    name: 'sync_full_proxy_rules_duration_seconds',
    type: 'histogram',
    labels: family,
    buckets: syncBuckets,
    modes: rules,
    help: 'Time of a sync that wrote everything',
  },
  {
    name: 'sync_partial_proxy_rules_duration_seconds',
    type: 'histogram',
    labels: family,
    buckets: syncBuckets,
    modes: rules,
    help: 'Time of a sync that wrote only differences',
  },
  {
    name: 'sync_proxy_rules_iptables_restore_failures_total',
    type: 'counter',
    labels: family,
    modes: ['iptables', 'ipvs'],
    help: 'Failed runs of iptables-restore',
  },
  {
    name: 'sync_proxy_rules_iptables_partial_restore_failures_total',
    type: 'counter',
    labels: family,
    modes: iptables,
    help: 'Failed runs of iptables-restore that wrote differences only',
  },
  {
    name: 'sync_proxy_rules_iptables_total',
    type: 'gauge',
    labels: ['table', ...family],
    modes: iptables,
    help: 'Rules of this program in the table',
  },
  {
    name: 'sync_proxy_rules_iptables_last',
    type: 'gauge',
    labels: ['table', ...family],
    modes: iptables,
    help: 'Rules written by the last sync',
  },
  {
    name: 'iptables_ct_state_invalid_dropped_packets_total',
    type: 'counter',
    labels: [],
    modes: iptables,
    help: 'Packets dropped because conntrack finds them invalid; 0 where the kernel has no nfacct',
  },
  {
    name: 'iptables_localhost_nodeports_accepted_packets_total',
    type: 'counter',
    labels: [],
    modes: iptables,
    help: 'New connections to node ports on 127.0.0.1; 0 where the kernel has no nfacct',
  },
  {
    name: 'sync_proxy_rules_nftables_sync_failures_total',
    type: 'counter',
    labels: family,
    modes: withTables,
    help: 'Failed nftables transactions',
  },
  {
    name: 'sync_proxy_rules_nftables_cleanup_failures_total',
    type: 'counter',
    labels: family,
    modes: withTables,
    help: 'Failed removals of unused chains',
  },
  {
    name: 'nftables_localhost_nodeport_listeners',
    type: 'gauge',
    labels: family,
    modes: withTables,
    help: 'Node ports that listen on 127.0.0.1 or ::1; as in kube-proxy 1.37',
  },
  {
    name: 'nftables_localhost_nodeport_listener_creation_failures_total',
    type: 'counter',
    labels: family,
    modes: withTables,
    help: 'Failed attempts to listen on 127.0.0.1 or ::1 for a node port; as in kube-proxy 1.37',
  },
  {
    name: 'conntrack_reconciler_sync_duration_seconds',
    type: 'histogram',
    labels: family,
    buckets: syncBuckets,
    modes: tracked,
    help: 'Time that one search for stale flows took',
  },
  {
    name: 'conntrack_reconciler_deleted_entries_total',
    type: 'counter',
    labels: family,
    modes: tracked,
    help: 'Stale flows deleted',
  },
]

/** Metrics of every Kubernetes component. */
export const componentMetrics: readonly MetricSpec[] = [
  {
    name: 'kubernetes_build_info',
    type: 'gauge',
    labels: ['git_version', 'major', 'minor', 'platform', 'compiler'],
    bare: true,
    help: 'Always 1; the labels are the version',
  },
  {
    name: 'kubernetes_feature_enabled',
    type: 'gauge',
    labels: ['name', 'stage'],
    bare: true,
    help: 'Whether a feature gate is on',
  },
  {
    name: 'rest_client_requests_total',
    type: 'counter',
    labels: ['code', 'method', 'host'],
    bare: true,
    help: 'Requests to the API server, by the status of the answer; code is `<error>` where none came',
  },
  {
    name: 'rest_client_request_duration_seconds',
    type: 'histogram',
    labels: ['verb', 'host'],
    buckets: [0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60],
    bare: true,
    help: 'Time until the API server answered, or until the request failed',
  },
]

function range(from: number, to: number, step: number): number[] {
  return Array.from({ length: (to - from) / step + 1 }, (_, index) => from + index * step)
}
