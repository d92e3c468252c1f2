/**
 * Kinds and fields in words, for `kubectl explain`: what they mean to this server and this proxy. The real documentation
 * has all fields and more words. `*` stands for every message.
 */
const table = `
: This server stores objects of this kind as they are sent, and does not know their fields.
status: What controllers and the proxy have found out. They write it; clients read it.
TypeMeta.apiVersion: The version of the API that the object is written in.
TypeMeta.kind: The kind of the object.
*.metadata: The name of the object, its labels, and what the server notes about it.
*.spec: What is wished for.
ObjectMeta: What all objects have.
ObjectMeta.name: Unique among the objects of this kind and namespace. It does not change.
ObjectMeta.generateName: The server makes a name that begins with this, if there is no name.
ObjectMeta.namespace: Where the name is unique.
ObjectMeta.uid: Another object of the same name has another one. The server gives it.
ObjectMeta.resourceVersion: Changes with each change. Who sends an old one is refused.
ObjectMeta.labels: Selectors find objects by these.
ObjectMeta.annotations: Anything else to note. Annotations kube-proxy-ts/... of a Service are options of this proxy.
ObjectMeta.ownerReferences: The object goes when these are gone.
OwnerReference: An object that this one belongs to.
Namespace: A place in which names are unique.
Node: A machine of the cluster. The proxy reads its addresses and its zone.
ConfigMap: Texts under names.
ConfigMap.data: The texts.
Secret: Bytes under names.
Service: One address for a set of pods. It stays while the pods come and go; the proxy of each node translates it.
ServiceSpec: How clients reach the Service, and which pods answer.
ServiceSpec.ports: The ports of its addresses. Each leads to a port of the pods.
ServiceSpec.selector: Pods with all of these labels answer. Without it, somebody else writes the EndpointSlices.
ServiceSpec.clusterIP: The address inside of the cluster. The server gives it; None means a headless Service, which the proxy leaves alone.
ServiceSpec.clusterIPs: One address of each IP family, the one in clusterIP first.
ServiceSpec.type: ClusterIP is for clients inside; NodePort adds a port on every node; LoadBalancer adds an address outside; ExternalName is a name only.
ServiceSpec.externalIPs: More addresses. Packets for them have to be routed to the nodes by somebody else.
ServiceSpec.sessionAffinity: ClientIP sends a client to the pod that it had before. The default is None.
ServiceSpec.sessionAffinityConfig: How long that lasts.
ServiceSpec.loadBalancerSourceRanges: Only clients from these ranges may use the load balancer.
ServiceSpec.externalTrafficPolicy: For clients outside. Local means: only pods of the node that is asked, and they see the client's own address.
ServiceSpec.internalTrafficPolicy: For clients inside. Local means: only pods of the client's own node.
ServiceSpec.healthCheckNodePort: Where a node tells load balancers whether it has pods, with externalTrafficPolicy Local.
ServiceSpec.publishNotReadyAddresses: Pods count as ready, whatever they say.
ServiceSpec.ipFamilies: IPv4, IPv6 or both, the main one first.
ServiceSpec.ipFamilyPolicy: SingleStack, PreferDualStack or RequireDualStack.
ServiceSpec.allocateLoadBalancerNodePorts: False means: a load balancer without node ports.
ServiceSpec.trafficDistribution: PreferSameZone and PreferSameNode prefer pods that are near.
ServicePort: A port of the addresses.
ServicePort.name: Needed if there are several. EndpointSlices name it.
ServicePort.protocol: TCP, UDP or SCTP. The default is TCP.
ServicePort.port: What clients ask.
ServicePort.targetPort: What pods listen on: a number, or the name of a port of their containers. The default is port.
ServicePort.nodePort: The port on every node, for the types NodePort and LoadBalancer. The server gives it.
ServicePort.appProtocol: What is spoken there. The proxy does not look at it.
SessionAffinityConfig: How long a client stays with a pod.
ClientIPConfig: How long a client stays with a pod.
ClientIPConfig.timeoutSeconds: So long after its last connection. The default is 10800, which is three hours.
EndpointSlice: Some endpoints of a Service. Its label kubernetes.io/service-name names the Service. A controller writes it from selectors.
EndpointSlice.endpoints: Who may answer.
EndpointSlice.ports: Where they listen. Each belongs to the port of the Service with the same name.
EndpointSlice.addressType: IPv4, IPv6 or FQDN. The proxy uses the first two.
Endpoint: A pod, or whatever answers at an address.
Endpoint.addresses: The proxy uses the first one.
Endpoint.conditions: Whether it may get connections.
Endpoint.targetRef: The pod, if it is one.
Endpoint.nodeName: Where it runs. Policies Local compare this.
Endpoint.zone: Where that node is.
Endpoint.hints: Who should use it, so that traffic stays near.
EndpointConditions: Whether it may get connections.
EndpointConditions.ready: It gets connections. This is also true where nothing is said.
EndpointConditions.serving: It answers, even while it terminates.
EndpointConditions.terminating: It is going away. It is used only if there is no other.
EndpointPort: Where endpoints listen.
Deployment: So many pods of a kind. Changes of the template replace them step by step.
DeploymentSpec: How many pods, and of which kind.
DeploymentSpec.replicas: How many pods there shall be.
DeploymentSpec.selector: Finds the pods. The template needs the same labels.
DeploymentSpec.template: What each pod looks like.
DeploymentSpec.paused: Changes of the template wait.
DeploymentSpec.revisionHistoryLimit: How many older ReplicaSets are kept, for kubectl rollout undo.
ReplicaSet: The pods of one version of a Deployment.
LabelSelector: Finds objects by their labels.
LabelSelector.matchLabels: They need all of these.
Pod: One or more containers with one address. In the playground, a small server that tells its name.
PodTemplateSpec: What each pod looks like.
PodSpec: What runs in a pod, and where. This server knows only some fields of it.
PodSpec.containers: What runs. Here nothing of it is started; only their ports are read.
PodSpec.nodeName: The node that it runs on.
PodSpec.nodeSelector: Labels that its node needs.
Container: A program of the pod.
Container.name: Unique in the pod.
Container.image: Where the program comes from. No image is pulled here.
Container.ports: Where it listens. A pod of the playground answers on these.
ContainerPort: A port of the pod.
ContainerPort.name: A targetPort can name it.
ContainerPort.containerPort: Its number.
`

/** By kind or message, or `message.field`. */
export const fieldWords: ReadonlyMap<string, string> = new Map(
  table
    .trim()
    .split('\n')
    .map((line) => {
      const colon = line.indexOf(':')
      return [line.slice(0, colon), line.slice(colon + 1).trim()]
    }),
)
