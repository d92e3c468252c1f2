/**
 * Field numbers of the API's protobuf messages, as its .proto files publish them: number, name
 * and type, with [] for a list; a map is a list of entries. Only what clients send when they
 * create something; unknown fields are skipped, as protobuf wants it.
 */
const schema = `
Unknown: 1 typeMeta TypeMeta, 2 raw bytes
TypeMeta: 1 apiVersion text, 2 kind text
TextEntry: 1 key text, 2 value text
BytesEntry: 1 key text, 2 value bytes
ObjectMeta: 1 name text, 2 generateName text, 3 namespace text, 5 uid text,
  6 resourceVersion text, 11 labels textMap, 12 annotations textMap,
  13 ownerReferences OwnerReference[], 14 finalizers text[]
OwnerReference: 1 kind text, 3 name text, 4 uid text, 5 apiVersion text, 6 controller bool,
  7 blockOwnerDeletion bool
DeleteOptions: 1 gracePeriodSeconds number, 2 preconditions Preconditions,
  3 orphanDependents bool, 4 propagationPolicy text, 5 dryRun text[]
Preconditions: 1 uid text, 2 resourceVersion text
Namespace: 1 metadata ObjectMeta
ConfigMap: 1 metadata ObjectMeta, 2 data textMap, 3 binaryData bytesMap, 4 immutable bool
Secret: 1 metadata ObjectMeta, 2 data bytesMap, 3 type text, 4 stringData textMap,
  5 immutable bool
ServiceAccount: 1 metadata ObjectMeta
Service: 1 metadata ObjectMeta, 2 spec ServiceSpec
ServiceSpec: 1 ports ServicePort[], 2 selector textMap, 3 clusterIP text, 4 type text,
  5 externalIPs text[], 7 sessionAffinity text, 8 loadBalancerIP text,
  9 loadBalancerSourceRanges text[], 10 externalName text, 11 externalTrafficPolicy text,
  12 healthCheckNodePort number, 13 publishNotReadyAddresses bool,
  14 sessionAffinityConfig SessionAffinityConfig, 17 ipFamilyPolicy text, 18 clusterIPs text[],
  19 ipFamilies text[], 20 allocateLoadBalancerNodePorts bool, 21 loadBalancerClass text,
  22 internalTrafficPolicy text, 23 trafficDistribution text
ServicePort: 1 name text, 2 protocol text, 3 port number, 4 targetPort IntOrString,
  5 nodePort number, 6 appProtocol text
SessionAffinityConfig: 1 clientIP ClientIPConfig
ClientIPConfig: 1 timeoutSeconds number
IntOrString: 1 type number, 2 intVal number, 3 strVal text
EndpointSlice: 1 metadata ObjectMeta, 2 endpoints Endpoint[], 3 ports EndpointPort[],
  4 addressType text
Endpoint: 1 addresses text[], 2 conditions EndpointConditions, 3 hostname text,
  4 targetRef ObjectReference, 6 nodeName text, 7 zone text, 8 hints EndpointHints
EndpointConditions: 1 ready bool, 2 serving bool, 3 terminating bool
EndpointHints: 1 forZones ForZone[], 2 forNodes ForNode[]
ForZone: 1 name text
ForNode: 1 name text
EndpointPort: 1 name text, 2 protocol text, 3 port number, 4 appProtocol text
Deployment: 1 metadata ObjectMeta, 2 spec DeploymentSpec
DeploymentSpec: 1 replicas number, 2 selector LabelSelector, 3 template PodTemplateSpec,
  4 strategy DeploymentStrategy, 5 minReadySeconds number, 6 revisionHistoryLimit number,
  7 paused bool, 9 progressDeadlineSeconds number
DeploymentStrategy: 1 type text
LabelSelector: 1 matchLabels textMap, 2 matchExpressions LabelSelectorRequirement[]
LabelSelectorRequirement: 1 key text, 2 operator text, 3 values text[]
Pod: 1 metadata ObjectMeta, 2 spec PodSpec
PodTemplateSpec: 1 metadata ObjectMeta, 2 spec PodSpec
PodSpec: 2 containers Container[], 3 restartPolicy text, 4 terminationGracePeriodSeconds number,
  6 dnsPolicy text, 7 nodeSelector textMap, 8 serviceAccountName text, 10 nodeName text,
  11 hostNetwork bool
Container: 1 name text, 2 image text, 3 command text[], 4 args text[], 6 ports ContainerPort[],
  7 env EnvVar[], 14 imagePullPolicy text
ContainerPort: 1 name text, 2 hostPort number, 3 containerPort number, 4 protocol text,
  5 hostIP text
EnvVar: 1 name text, 2 value text
Role: 1 metadata ObjectMeta, 2 rules PolicyRule[]
ClusterRole: 1 metadata ObjectMeta, 2 rules PolicyRule[]
PolicyRule: 1 verbs text[], 2 apiGroups text[], 3 resources text[], 4 resourceNames text[],
  5 nonResourceURLs text[]
RoleBinding: 1 metadata ObjectMeta, 2 subjects Subject[], 3 roleRef RoleRef
ClusterRoleBinding: 1 metadata ObjectMeta, 2 subjects Subject[], 3 roleRef RoleRef
Subject: 1 kind text, 2 apiGroup text, 3 name text, 4 namespace text
RoleRef: 1 apiGroup text, 2 kind text, 3 name text
autoscaling/v1/HorizontalPodAutoscaler: 1 metadata ObjectMeta, 2 spec AutoscalerSpec
AutoscalerSpec: 1 scaleTargetRef ScaleTarget, 2 minReplicas number, 3 maxReplicas number,
  4 targetCPUUtilizationPercentage number
ScaleTarget: 1 kind text, 2 name text, 3 apiVersion text
events.k8s.io/v1/Event: 1 metadata ObjectMeta, 2 eventTime time, 4 reportingController text,
  5 reportingInstance text, 6 action text, 7 reason text, 8 regarding ObjectReference,
  9 related ObjectReference, 10 note text, 11 type text
ObjectReference: 1 kind text, 2 namespace text, 3 name text, 4 uid text, 5 apiVersion text,
  6 resourceVersion text, 7 fieldPath text
Timestamp: 1 seconds number, 2 nanos number
`

export interface MessageField {
  readonly number: number
  readonly name: string
  readonly type: string
}

/** The fields of each message, by its name. */
export const messages: ReadonlyMap<string, readonly MessageField[]> = new Map(
  schema
    .trim()
    .split(/\n(?! )/)
    .map((message) => {
      const [, name = '', fields = ''] = /^(\S+): ([^]*)$/.exec(message) ?? []
      return [name, fields.split(/,\s+/).map(parseField)]
    }),
)

function parseField(text: string): MessageField {
  const [number, name = '', type = ''] = text.split(' ')
  return { number: Number(number), name, type }
}
