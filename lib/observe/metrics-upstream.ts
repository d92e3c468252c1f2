import type { ModeName } from '../config/config.js'
import { counter, gauge, histogram, type MetricSpec } from './metric-spec.js'

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
  histogram('sync_proxy_rules_duration_seconds', family, 'Time that one sync took', {
    buckets: syncBuckets,
  }),
  gauge(
    'sync_proxy_rules_last_timestamp_seconds',
    family,
    'Time of the last successful sync, in seconds since 1970',
  ),
  gauge(
    'sync_proxy_rules_last_queued_timestamp_seconds',
    family,
    'Time of the last request for a sync, in seconds since 1970',
  ),
  histogram(
    'network_programming_duration_seconds',
    family,
    'Time from the change of an endpoint until its rules are in the kernel',
    { buckets: programmingBuckets },
  ),
  gauge(
    'sync_proxy_rules_endpoint_changes_pending',
    [],
    'Changes of endpoints that are not synced yet',
  ),
  counter('sync_proxy_rules_endpoint_changes_total', [], 'Changes of endpoints seen'),
  gauge(
    'sync_proxy_rules_service_changes_pending',
    [],
    'Changes of Services that are not synced yet',
  ),
  counter('sync_proxy_rules_service_changes_total', [], 'Changes of Services seen'),
  gauge(
    'sync_proxy_rules_no_local_endpoints_total',
    ['traffic_policy', ...family],
    'Services with policy Local and no endpoint on this node',
  ),
  counter('proxy_healthz_total', ['code'], 'Answers of /healthz'),
  counter('proxy_livez_total', ['code'], 'Answers of /livez'),
]

const iptables: readonly ModeName[] = ['iptables']
const rules: readonly ModeName[] = ['iptables', 'nftables', 'ebpf']
const tracked: readonly ModeName[] = ['iptables', 'ipvs', 'nftables', 'ebpf']

/** The packet path of ebpf mode is that of nftables mode. */
const withTables: readonly ModeName[] = ['nftables', 'ebpf']

/** Metrics of the kernel modes, as in kube-proxy 1.36. */
export const kernelModeMetrics: readonly MetricSpec[] = [
  histogram(
    'sync_full_proxy_rules_duration_seconds',
    family,
    'Time of a sync that wrote everything',
    { modes: rules, buckets: syncBuckets },
  ),
  histogram(
    'sync_partial_proxy_rules_duration_seconds',
    family,
    'Time of a sync that wrote only differences',
    { modes: rules, buckets: syncBuckets },
  ),
  counter(
    'sync_proxy_rules_iptables_restore_failures_total',
    family,
    'Failed runs of iptables-restore',
    { modes: ['iptables', 'ipvs'] },
  ),
  counter(
    'sync_proxy_rules_iptables_partial_restore_failures_total',
    family,
    'Failed runs of iptables-restore that wrote differences only',
    { modes: iptables },
  ),
  gauge(
    'sync_proxy_rules_iptables_total',
    ['table', ...family],
    'Rules of this program in the table',
    { modes: iptables },
  ),
  gauge('sync_proxy_rules_iptables_last', ['table', ...family], 'Rules written by the last sync', {
    modes: iptables,
  }),
  counter(
    'iptables_ct_state_invalid_dropped_packets_total',
    [],
    'Packets dropped because conntrack finds them invalid; 0 where the kernel has no nfacct',
    { modes: iptables },
  ),
  counter(
    'iptables_localhost_nodeports_accepted_packets_total',
    [],
    'New connections to node ports on 127.0.0.1; 0 where the kernel has no nfacct',
    { modes: iptables },
  ),
  counter('sync_proxy_rules_nftables_sync_failures_total', family, 'Failed nftables transactions', {
    modes: withTables,
  }),
  counter(
    'sync_proxy_rules_nftables_cleanup_failures_total',
    family,
    'Failed removals of unused chains',
    { modes: withTables },
  ),
  gauge(
    'nftables_localhost_nodeport_listeners',
    family,
    'Node ports that listen on 127.0.0.1 or ::1; as in kube-proxy 1.37',
    { modes: withTables },
  ),
  counter(
    'nftables_localhost_nodeport_listener_creation_failures_total',
    family,
    'Failed attempts to listen on 127.0.0.1 or ::1 for a node port; as in kube-proxy 1.37',
    { modes: withTables },
  ),
  histogram(
    'conntrack_reconciler_sync_duration_seconds',
    family,
    'Time that one search for stale flows took',
    { modes: tracked, buckets: syncBuckets },
  ),
  counter('conntrack_reconciler_deleted_entries_total', family, 'Stale flows deleted', {
    modes: tracked,
  }),
]

/** Metrics of every Kubernetes component. */
export const componentMetrics: readonly MetricSpec[] = [
  gauge(
    'kubernetes_build_info',
    ['git_version', 'major', 'minor', 'platform', 'compiler'],
    'Always 1; the labels are the version',
    { bare: true },
  ),
  gauge('kubernetes_feature_enabled', ['name', 'stage'], 'Whether a feature gate is on', {
    bare: true,
  }),
  counter(
    'rest_client_requests_total',
    ['code', 'method', 'host'],
    'Requests to the API server, by the status of the answer; code is `<error>` where none came',
    { bare: true },
  ),
  histogram(
    'rest_client_request_duration_seconds',
    ['verb', 'host'],
    'Time until the API server answered, or until the request failed',
    { buckets: [0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60], bare: true },
  ),
]

function range(from: number, to: number, step: number): number[] {
  return Array.from({ length: (to - from) / step + 1 }, (_, index) => from + index * step)
}
