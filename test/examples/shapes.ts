/**
 * The fields of the kinds in examples/kubernetes, as the Kubernetes API and the Prometheus operator
 * document them, as far as the examples may use them. A field that is not listed is a mistake, here
 * or in the example. `?` marks fields that may be missing.
 */

export type Shape =
  | 'string'
  | 'integer'
  | 'boolean'
  | 'number'
  | 'text or number'
  | 'texts'
  | readonly [Shape]
  | { readonly [field: string]: Shape }

const meta: Shape = {
  name: 'string',
  'namespace?': 'string',
  'labels?': 'texts',
  'annotations?': 'texts',
}
const selector: Shape = { matchLabels: 'texts' }

const probe: Shape = {
  httpGet: { path: 'string', port: 'text or number', 'host?': 'string', 'scheme?': 'string' },
  'periodSeconds?': 'integer',
  'failureThreshold?': 'integer',
  'initialDelaySeconds?': 'integer',
  'timeoutSeconds?': 'integer',
  'successThreshold?': 'integer',
}

const container: Shape = {
  name: 'string',
  image: 'string',
  'imagePullPolicy?': 'string',
  'command?': ['string'],
  'args?': ['string'],
  'env?': [
    { name: 'string', 'value?': 'string', 'valueFrom?': { fieldRef: { fieldPath: 'string' } } },
  ],
  'envFrom?': [{ configMapRef: { name: 'string' } }],
  'ports?': [{ name: 'string', containerPort: 'integer', 'protocol?': 'string' }],
  securityContext: {
    privileged: 'boolean',
    'allowPrivilegeEscalation?': 'boolean',
    readOnlyRootFilesystem: 'boolean',
    'capabilities?': { drop: ['string'], add: ['string'] },
  },
  'startupProbe?': probe,
  'livenessProbe?': probe,
  'readinessProbe?': probe,
  'resources?': { 'requests?': 'texts', 'limits?': 'texts' },
  'volumeMounts?': [{ name: 'string', mountPath: 'string', 'readOnly?': 'boolean' }],
}

const podSpec: Shape = {
  serviceAccountName: 'string',
  priorityClassName: 'string',
  hostNetwork: 'boolean',
  dnsPolicy: 'string',
  nodeSelector: 'texts',
  tolerations: [{ operator: 'string', 'key?': 'string', 'effect?': 'string' }],
  'terminationGracePeriodSeconds?': 'integer',
  securityContext: { seccompProfile: { type: 'string' } },
  'initContainers?': [container],
  containers: [container],
  volumes: [
    {
      name: 'string',
      'configMap?': { name: 'string' },
      'hostPath?': { path: 'string', 'type?': 'string' },
    },
  ],
}

const policyRule: Shape = { apiGroups: ['string'], resources: ['string'], verbs: ['string'] }

/** The fields by apiVersion and kind, without these two. */
export const shapes: Readonly<Record<string, Shape>> = {
  'v1 ServiceAccount': { metadata: meta },
  'v1 ConfigMap': { metadata: meta, data: 'texts' },
  'rbac.authorization.k8s.io/v1 ClusterRole': { metadata: meta, rules: [policyRule] },
  'rbac.authorization.k8s.io/v1 ClusterRoleBinding': {
    metadata: meta,
    roleRef: { apiGroup: 'string', kind: 'string', name: 'string' },
    subjects: [{ kind: 'string', name: 'string', 'namespace?': 'string' }],
  },
  'apps/v1 DaemonSet': {
    metadata: meta,
    spec: {
      selector,
      updateStrategy: { type: 'string', rollingUpdate: { maxUnavailable: 'text or number' } },
      template: { metadata: { labels: 'texts' }, spec: podSpec },
    },
  },
  'monitoring.coreos.com/v1 PodMonitor': {
    metadata: meta,
    spec: {
      selector,
      podMetricsEndpoints: [
        {
          port: 'string',
          'path?': 'string',
          'interval?': 'string',
          'relabelings?': [
            { 'sourceLabels?': ['string'], targetLabel: 'string', 'replacement?': 'string' },
          ],
        },
      ],
    },
  },
  'monitoring.coreos.com/v1 PrometheusRule': {
    metadata: meta,
    spec: {
      groups: [
        {
          name: 'string',
          rules: [
            {
              alert: 'string',
              expr: 'string',
              'for?': 'string',
              labels: 'texts',
              annotations: 'texts',
            },
          ],
        },
      ],
    },
  },
}

/** The mistakes in a value, each with its path. */
export function problems(value: unknown, shape: Shape, path = ''): readonly string[] {
  const wrong = (wanted: string) => [`${path}: ${JSON.stringify(value)} is not ${wanted}`]
  if (typeof shape === 'string') return isSimple(value, shape) ? [] : wrong(shape)
  if (Array.isArray(shape)) {
    const [item] = shape as readonly [Shape]
    if (!Array.isArray(value)) return wrong('a list')
    return value.flatMap((one, index) => problems(one, item, `${path}[${index}]`))
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return wrong('an object')
  const fields = new Map(
    Object.entries(shape).map(([name, of]) => [name.replace('?', ''), { of, name }]),
  )
  const missing = [...fields]
    .filter(([field, { name }]) => !name.endsWith('?') && !Object.hasOwn(value, field))
    .map(([field]) => `${path}.${field} is missing`)
  return Object.entries(value).reduce<readonly string[]>((found, [field, inner]) => {
    const known = fields.get(field)
    if (known === undefined) return [...found, `${path}.${field} is unknown`]
    return [...found, ...problems(inner, known.of, `${path}.${field}`)]
  }, missing)
}

function isSimple(value: unknown, shape: Extract<Shape, string>): boolean {
  switch (shape) {
    case 'integer':
      return Number.isInteger(value)
    case 'text or number':
      return typeof value === 'string' || Number.isInteger(value)
    case 'texts':
      return (
        typeof value === 'object' &&
        value !== null &&
        Object.values(value).every((one) => typeof one === 'string')
      )
    default:
      return typeof value === shape
  }
}
