/**
 * The objects of clusters without this program, in the shapes that kubeadm, kind and k3s document.
 * The recipes of docs/migrate.md run with them.
 */
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

const kubeadmFile = readFileSync(
  fileURLToPath(new URL('../../../examples/config/kubeadm.yaml', import.meta.url)),
  'utf8',
)

const inSystem = (name: string, labels = {}) => ({ name, namespace: 'kube-system', labels })

const kubeconfig = (server: string) => `apiVersion: v1
kind: Config
clusters:
- cluster:
    certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt
    server: ${server}
  name: default
contexts:
- context:
    cluster: default
    namespace: default
    user: default
  name: default
current-context: default
users:
- name: default
  user:
    tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
`

/**
 * The ConfigMap that kubeadm writes: the configuration, and how to reach the API server. Neither
 * text ends with a newline, as kubeadm's template says.
 */
const configMap = (config: string, server: string) => ({
  apiVersion: 'v1',
  kind: 'ConfigMap',
  metadata: inSystem('kube-proxy', { app: 'kube-proxy' }),
  data: { 'config.conf': config.trimEnd(), 'kubeconfig.conf': kubeconfig(server).trimEnd() },
})

const labels = { 'k8s-app': 'kube-proxy' }

/** The DaemonSet as in kubeadm's template, with its node selector. */
export const kubeadmDaemonSet = {
  apiVersion: 'apps/v1',
  kind: 'DaemonSet',
  metadata: inSystem('kube-proxy', labels),
  spec: {
    revisionHistoryLimit: 10,
    selector: { matchLabels: labels },
    updateStrategy: { type: 'RollingUpdate', rollingUpdate: { maxSurge: 0, maxUnavailable: 1 } },
    template: {
      metadata: { labels },
      spec: {
        priorityClassName: 'system-node-critical',
        serviceAccountName: 'kube-proxy',
        hostNetwork: true,
        nodeSelector: { 'kubernetes.io/os': 'linux' },
        tolerations: [{ operator: 'Exists' }],
        containers: [
          {
            name: 'kube-proxy',
            image: 'registry.k8s.io/kube-proxy:v1.36.0',
            command: [
              '/usr/local/bin/kube-proxy',
              '--config=/var/lib/kube-proxy/config.conf',
              '--hostname-override=$(NODE_NAME)',
            ],
            env: [{ name: 'NODE_NAME', valueFrom: { fieldRef: { fieldPath: 'spec.nodeName' } } }],
            securityContext: { privileged: true },
            volumeMounts: [
              { name: 'kube-proxy', mountPath: '/var/lib/kube-proxy' },
              { name: 'xtables-lock', mountPath: '/run/xtables.lock' },
              { name: 'lib-modules', mountPath: '/lib/modules', readOnly: true },
            ],
          },
        ],
        volumes: [
          { name: 'kube-proxy', configMap: { name: 'kube-proxy' } },
          { name: 'xtables-lock', hostPath: { path: '/run/xtables.lock', type: 'FileOrCreate' } },
          { name: 'lib-modules', hostPath: { path: '/lib/modules' } },
        ],
      },
    },
  },
}

const node = (name: string) => ({
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name, labels: { 'kubernetes.io/os': 'linux' } },
})

const kubeadm = (config: string, server: string, nodes: readonly string[]) => [
  configMap(config, server),
  kubeadmDaemonSet,
  ...nodes.map(node),
]

/** kubeadm fills in the cluster's range of pods. Everything else is in the example. */
export const kubeadmCluster = kubeadm(
  kubeadmFile.replace(/^clusterCIDR: .*/m, 'clusterCIDR: 10.217.0.0/16'),
  'https://192.168.11.20:8443',
  ['control-1', 'worker-1'],
)

/** A cluster with two IP families. The address of its API server has brackets. */
export const dualStackCluster = kubeadm(
  kubeadmFile.replace(/^clusterCIDR: .*/m, 'clusterCIDR: 10.217.0.0/16,fd00:217::/56'),
  'https://[fd00:11::20]:6443',
  ['control-1'],
)

/** kind uses kubeadm, and adds settings that nodes in containers need. */
export const kindCluster = kubeadm(
  kubeadmFile
    .replace(/^mode: .*/m, 'mode: iptables')
    .replace(/maxPerCore: null/, 'maxPerCore: 0')
    .replace(/^( {2}masqueradeBit: null\n {2}minSyncPeriod:) 0s/m, '$1 1s'),
  'https://kind-control-plane:6443',
  ['kind-control-plane'],
)

/** k3s has neither DaemonSet nor ConfigMap for its proxy, because the proxy runs in its process. */
export const k3sCluster = [
  node('k3s-server'),
  {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      name: 'kubernetes',
      namespace: 'default',
      labels: { 'kubernetes.io/service-name': 'kubernetes' },
    },
    addressType: 'IPv4',
    endpoints: [{ addresses: ['192.168.12.5'], conditions: { ready: true } }],
    ports: [{ name: 'https', port: 6443, protocol: 'TCP' }],
  },
]

/** The flags that k3s logs as `Running kube-proxy`. Its proxy reads no file. */
export const k3sFlags = [
  '--cluster-cidr=10.42.0.0/16',
  '--conntrack-max-per-core=0',
  '--conntrack-tcp-timeout-close-wait=0s',
  '--conntrack-tcp-timeout-established=0s',
  '--healthz-bind-address=127.0.0.1',
  '--hostname-override=k3s-server',
  '--kubeconfig=/var/lib/rancher/k3s/agent/kubeproxy.kubeconfig',
  '--proxy-mode=iptables',
]
