/**
 * What all objects have, and small kinds. Here and in the other tables of words a block is a kind or a part of one,
 * and each line in it a field. A field that is not in the table of messages says its type; `*` stands for every block
 * that has no words of its own.
 */
export const objectWords = `
*: This server stores objects of this kind as they are sent, and does not know their fields.
  apiVersion: The version of the API that the object is written in.
  kind: The kind of the object.
  metadata: The name of the object, its labels, and what the server notes about it.
  spec: The wanted state.
  status: The state that controllers and the proxy have seen. They write it; clients read it.
  conditions: What is true of the object now, and since when.
ObjectMeta: What all objects have.
  name: Unique among the objects of this kind and namespace. It does not change.
  generateName: The server makes a name that begins with this, if there is no name.
  namespace: Where the name is unique.
  uid: The server gives each object another one, also if a later object has the same name.
  resourceVersion: Changes with each write. The server refuses a write with an old one.
  labels: Selectors find objects by these.
  annotations: Any other notes. Annotations kube-proxy-ts/... of a Service are options of this proxy.
  ownerReferences: The object is removed when these are gone.
  finalizers: Programs that must tidy up before the object is removed. This server drops them with a warning, because it has no such programs.
  creationTimestamp time: When it was made. The server writes it.
  deletionTimestamp time: The object is being removed, and is gone at this time at the latest. The server writes it.
  deletionGracePeriodSeconds number: How many seconds the object may take to end.
  generation number: Grows with each change of the wanted state.
  managedFields ManagedField[]: Who has written which field. kubectl apply --server-side asks for it.
ManagedField: One writer, and what it has written.
  manager text: The name of the writer, such as kubectl-create.
  operation text: Apply or Update.
  apiVersion text: The version in which it wrote.
  time time: When it wrote last.
  fieldsType text: Always FieldsV1.
  fieldsV1 object: The fields, as a tree.
OwnerReference: An object that this one belongs to.
  apiVersion: The version of the owner's kind.
  kind: The owner's kind, such as ReplicaSet.
  name: The owner's name.
  uid: The owner itself, not another one of its name.
  controller: Whether the owner looks after this object. Only one does.
  blockOwnerDeletion: Whether the owner waits for this object when the owner is removed.
ObjectReference: Another object.
  apiVersion: The version of its kind.
  kind: Its kind.
  name: Its name.
  namespace: Its namespace.
  uid: The object itself, not another one of its name.
  resourceVersion: The object as it was then.
  fieldPath: A part of it.
Condition: Something that is true of the object, or not.
  type text: What it is about, such as Ready.
  status text: True, False or Unknown.
  reason text: Why, in one word.
  message text: Why, in a sentence.
  lastTransitionTime time: Since when.
  lastUpdateTime time: When it was checked last. Only Deployments have it.
  lastHeartbeatTime time: When kubelet reported it last. Only Nodes have it.
  lastProbeTime time: Not used; always empty.
LabelSelector: Finds objects by their labels.
  matchLabels: An object needs all of these labels.
  matchExpressions: An object must also meet all of these conditions.
LabelSelectorRequirement: A condition for one label.
  key: The name of the label.
  operator: In, NotIn, Exists or DoesNotExist.
  values: The values for In and NotIn.
Namespace: A place in which names are unique. Its objects are removed with it.
  spec NamespaceSpec: The wanted state.
  status NamespaceStatus: Whether it exists.
NamespaceSpec: The wanted state.
  finalizers text[]: Programs that must tidy up before the namespace is removed. This server does not wait for them.
NamespaceStatus: Whether it exists.
  phase text: Active.
ConfigMap: Texts under names. Nothing here reads them.
  data: The texts.
  binaryData: Bytes, in base64.
  immutable: Whether the data must not change. This server stores this, but does not refuse changes.
Secret: Bytes under names. Nothing here reads them.
  data: The bytes, in base64.
  stringData: Texts. The server moves them into data.
  type: What it is used for. The default is Opaque.
  immutable: Whether the data must not change. This server stores this, but does not refuse changes.
ServiceAccount: A name for programs that ask the API. This server asks no program for a name.
PolicyRule: What is allowed. This server stores it and allows everything.
  verbs: What may be done: get, list, watch, create and so on.
  apiGroups: To kinds of these groups; "" is the group of pods and Services.
  resources: To these kinds.
  resourceNames: Only to objects of these names.
  nonResourceURLs: Paths that belong to no kind, such as /healthz.
Role: What is allowed in a namespace.
  rules: All of these are allowed.
ClusterRole: What is allowed anywhere.
  rules: All of these are allowed.
RoleBinding: Who has a role, in a namespace.
  subjects: Who has it.
  roleRef: Which role.
ClusterRoleBinding: Who has a role, anywhere.
  subjects: Who has it.
  roleRef: Which role.
Subject: Somebody who has a role.
  kind: User, Group or ServiceAccount.
  apiGroup: The group of that kind.
  name: The name.
  namespace: Where it is, if it is a ServiceAccount.
RoleRef: A role.
  apiGroup: The group of its kind.
  kind: Role or ClusterRole.
  name: Its name.
Event: Something that happened to an object. kubectl describe shows it there.
  involvedObject ObjectReference: What it happened to.
  type text: Normal or Warning.
  reason text: What happened, in one word.
  message text: What happened, in a sentence.
  count number: How often.
  firstTimestamp time: When it happened first.
  lastTimestamp time: When it happened last.
  eventTime time: When it happened, if it is written as an Event of events.k8s.io/v1, as by this proxy.
  source EventSource: Who wrote the Event.
  action text: What was done.
  related ObjectReference: Another object that it is about.
  reportingComponent text: Which program wrote the Event, such as kube-proxy.
  reportingInstance text: Which one of these programs.
EventSource: Who wrote the Event.
  component text: A program.
  host text: The node that it runs on.
events.k8s.io/v1/Event: Something that happened to an object. In v1 it is the same Event with other names of fields.
  regarding: What it happened to.
  type: Normal or Warning.
  reason: What happened, in one word.
  note: What happened, in a sentence.
  action: What was done.
  eventTime: When it happened.
  related: Another object that it is about.
  reportingController: Which program wrote the Event, such as kube-proxy.
  reportingInstance: Which one of these programs.
  deprecatedSource EventSource: As source of v1.
  deprecatedFirstTimestamp time: As firstTimestamp of v1.
  deprecatedLastTimestamp time: As lastTimestamp of v1.
  deprecatedCount number: As count of v1.
`
