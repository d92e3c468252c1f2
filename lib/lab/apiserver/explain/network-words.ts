/** Services, endpoints and nodes: what the proxy reads. */
export const networkWords = `
Service: One address for a set of pods. It stays while the pods come and go; the proxy of each node translates it.
  status ServiceStatus: The addresses outside, if it has any.
ServiceSpec: How clients reach the Service, and which pods answer.
  ports: The ports of its addresses. Each leads to a port of the pods.
  selector: Pods with all of these labels answer. Without it, somebody else writes the EndpointSlices.
  clusterIP: The address inside of the cluster. The server gives it; None means a headless Service, which the proxy leaves alone.
  clusterIPs: One address of each IP family, the one in clusterIP first.
  type: ClusterIP is for clients inside; NodePort adds a port on every node; LoadBalancer adds an address outside; ExternalName is a name only.
  externalIPs: More addresses. Packets for them have to be routed to the nodes by somebody else.
  externalName: For the type ExternalName: the name that DNS answers with. The proxy leaves it alone.
  sessionAffinity: ClientIP sends a client to the pod that it had before. The default is None.
  sessionAffinityConfig: How long that lasts.
  loadBalancerIP: The wanted address outside. Nothing here reads it.
  loadBalancerClass: Which load balancer is used. Nothing here reads it.
  loadBalancerSourceRanges: Only clients from these ranges may use the load balancer.
  externalTrafficPolicy: For clients outside. Local means: only pods of the node that is asked, and they see the client's own address.
  internalTrafficPolicy: For clients inside. Local means: only pods of the client's own node.
  healthCheckNodePort: Where a node tells load balancers whether it has pods, with externalTrafficPolicy Local.
  publishNotReadyAddresses: Pods count as ready, even if they are not.
  ipFamilies: IPv4, IPv6 or both, the main one first.
  ipFamilyPolicy: SingleStack, PreferDualStack or RequireDualStack.
  allocateLoadBalancerNodePorts: False means: a load balancer without node ports.
  trafficDistribution: PreferSameZone and PreferSameNode prefer pods that are near.
ServicePort: A port of the addresses.
  name: Needed if there are several. EndpointSlices name it.
  protocol: TCP, UDP or SCTP. The default is TCP.
  port: The port that clients use.
  targetPort: The port that pods listen on: a number, or the name of a port of their containers. The default is port.
  nodePort: The port on every node, for the types NodePort and LoadBalancer. The server gives it.
  appProtocol: The protocol of the application. The proxy does not look at it.
SessionAffinityConfig: How long a client stays with a pod.
  clientIP: The settings for ClientIP.
ClientIPConfig: How long a client stays with a pod.
  timeoutSeconds: How many seconds after its last connection. The default is 10800, which is three hours.
ServiceStatus: The addresses outside, if it has any.
  loadBalancer LoadBalancerStatus: What the load balancer says.
LoadBalancerStatus: What the load balancer says.
  ingress LoadBalancerIngress[]: Its addresses. The proxy of each node translates them, too.
LoadBalancerIngress: An address outside.
  ip text: The address.
  hostname text: A name instead of it. The proxy leaves it alone.
  ipMode text: Proxy means: packets come by the load balancer, and nodes do not take its address. The default is VIP.
EndpointSlice: Some endpoints of a Service. Its label kubernetes.io/service-name names the Service. A controller writes it from selectors.
  endpoints: The endpoints that may answer.
  ports: Where they listen. Each belongs to the port of the Service with the same name.
  addressType: IPv4, IPv6 or FQDN. The proxy uses the first two.
Endpoint: A pod, or another program that answers at an address.
  addresses: The proxy uses the first one.
  conditions: Whether it may get connections.
  hostname: Its name in DNS. The proxy does not look at it.
  targetRef: The pod, if it is one.
  nodeName: Where it runs. Policies Local compare this.
  zone: Where that node is.
  hints: Which nodes should use it, so that traffic stays near.
EndpointConditions: Whether it may get connections.
  ready: It gets connections. If this is missing, it counts as true.
  serving: It answers, even while it terminates.
  terminating: It is going away. It is used only if there is no other.
EndpointHints: Which nodes should use it, so that traffic stays near.
  forZones: Nodes in these zones.
  forNodes: These nodes.
ForZone: A zone.
  name: Its name: the label topology.kubernetes.io/zone of nodes.
ForNode: A node.
  name: Its name.
EndpointPort: Where endpoints listen.
  name: Which port of the Service it belongs to.
  protocol: TCP, UDP or SCTP. The default is TCP.
  port: The number. It may be another one than the port of the Service.
  appProtocol: The protocol of the application. The proxy does not look at it.
Endpoints: The older form of EndpointSlices. The proxy does not read it.
  subsets EndpointSubset[]: The addresses. If a user writes them, the server copies them into EndpointSlices.
EndpointSubset: Addresses that listen on the same ports.
  addresses EndpointAddress[]: These are ready.
  notReadyAddresses EndpointAddress[]: These are not.
  ports EndpointPort[]: Where they listen.
EndpointAddress: A pod, or another program that answers at an address.
  ip text: The address.
  hostname text: Its name in DNS.
  nodeName text: Where it runs.
  targetRef ObjectReference: The pod, if it is one.
ServiceCIDR: Ranges from which Services get their addresses. Another object widens them.
  spec ServiceCIDRSpec: Which ranges.
  status ServiceCIDRStatus: Whether they are in use.
ServiceCIDRSpec: Which ranges.
  cidrs text[]: One of each IP family. They do not change.
ServiceCIDRStatus: Whether they are in use.
  conditions Condition[]: Ready means: addresses are taken from it.
Node: A machine of the cluster. The proxy reads its addresses, its zone, and the ranges of its pods.
  spec NodeSpec: The wanted state.
  status NodeStatus: What the machine says of itself.
NodeSpec: The wanted state.
  podCIDR text: The range of its pods, if there is one range.
  podCIDRs text[]: The ranges of its pods, one of each IP family. The detect mode NodeCIDR recognizes pods by them.
  unschedulable bool: Whether the node gets no new pods. kubectl cordon sets it.
  taints Taint[]: With ToBeDeletedByClusterAutoscaler the health check of the proxy says that the node goes away. This server puts pods on nodes with any taint.
Taint: Something that keeps pods away.
  key text: Its name.
  value text: Its value.
  effect text: NoSchedule, PreferNoSchedule or NoExecute.
NodeStatus: What the machine says of itself.
  addresses NodeAddress[]: Where it is reached. Node ports answer there.
  conditions Condition[]: Pods are put only on a node that is Ready.
  nodeInfo NodeInfo: Its software.
  capacity textMap: What the machine has. In the playground: how many pods it can run.
  allocatable textMap: The part of it that pods may use.
NodeAddress: An address of the node.
  type text: InternalIP, ExternalIP or Hostname. The proxy prefers InternalIP.
  address text: The address.
NodeInfo: Its software. Only kubectl get nodes shows it.
  kubeletVersion text: The version of the kubelet, which runs the pods.
  osImage text: Its operating system.
  kernelVersion text: Its kernel.
  containerRuntimeVersion text: The program that starts containers.
`
