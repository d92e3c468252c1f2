/** Deployments, ReplicaSets and pods: what the small controllers work on. */
export const workloadWords = `
Deployment: So many pods of a kind. Changes of the template replace them step by step.
  status DeploymentStatus: How far it is.
DeploymentSpec: How many pods, and of which kind.
  replicas: How many pods there shall be. The default is 1.
  selector: Finds the pods. The template needs the same labels.
  template: What each pod looks like.
  strategy: How pods are replaced when the template changes.
  paused: Changes of the template wait, as kubectl rollout pause wishes.
  revisionHistoryLimit: How many older ReplicaSets are kept, for kubectl rollout undo. The default is 10.
  minReadySeconds: Nothing here waits so long.
  progressDeadlineSeconds: Nothing here gives up after so long.
DeploymentStrategy: How pods are replaced when the template changes.
  type: RollingUpdate replaces them one by one; Recreate ends all old ones first. The default is RollingUpdate.
  rollingUpdate RollingUpdate: How many at a time. Nothing here reads it.
RollingUpdate: How many at a time. Nothing here reads it: there is one pod more than wished for, and none less.
  maxSurge IntOrString: So many more than wished for.
  maxUnavailable IntOrString: So many less.
DeploymentStatus: How far it is.
  observedGeneration number: Of which metadata.generation this tells.
  replicas number: How many pods there are, old and new.
  updatedReplicas number: How many are of the newest template.
  readyReplicas number: How many are ready.
  availableReplicas number: The same here.
  unavailableReplicas number: How many are missing.
  conditions Condition[]: Available, and Progressing with how far a rollout is.
ReplicaSet: The pods of one version of a Deployment.
  spec ReplicaSetSpec: How many pods, and of which kind.
  status ReplicaSetStatus: How far it is.
ReplicaSetSpec: How many pods, and of which kind.
  replicas number: How many pods there shall be. The Deployment writes it. The default is 1.
  selector LabelSelector: Finds the pods. pod-template-hash tells the versions apart.
  template PodTemplateSpec: What each pod looks like. It does not change; a Deployment makes another ReplicaSet.
  minReadySeconds number: Nothing here waits so long.
ReplicaSetStatus: How far it is.
  observedGeneration number: Of which metadata.generation this tells.
  replicas number: How many pods there are.
  fullyLabeledReplicas number: The same here.
  readyReplicas number: How many are ready.
  availableReplicas number: The same here.
PodTemplateSpec: What each pod looks like.
Pod: One or more containers with one address. In the playground, a small server that tells its name.
  status PodStatus: Whether it runs, and where.
PodSpec: What runs in a pod, and where. This server knows only some fields of it, and stores the others.
  containers: What runs. Here nothing of it is started; only their ports are read.
  nodeName: The node that it runs on. The server chooses the one with the fewest pods.
  nodeSelector: Labels that its node needs.
  restartPolicy: Always, OnFailure or Never. Here no pod ends by itself.
  terminationGracePeriodSeconds: So long it may answer its last requests after it was deleted. The default is 30.
  dnsPolicy: Whom it asks for names. There is no DNS here.
  serviceAccountName: Who it is when it asks the API. Nothing here reads it.
  hostNetwork: It uses the addresses of its node. Nothing here reads it.
Container: A program of the pod.
  name: Unique in the pod.
  image: Where the program comes from. No image is pulled here.
  command: The program, if it is not the one of the image. Nothing here starts it.
  args: Its arguments.
  env: Its environment.
  ports: Where it listens. A pod of the playground answers on these.
  imagePullPolicy: Always, IfNotPresent or Never. No image is pulled here.
ContainerPort: A port of the pod.
  name: A targetPort can name it.
  containerPort: Its number.
  protocol: TCP, UDP or SCTP. The default is TCP.
  hostPort: The same port on the node. The proxy does not make it; a network plug-in does.
  hostIP: At which address of the node.
EnvVar: A variable of the environment.
  name: Its name.
  value: Its value.
PodStatus: Whether it runs, and where.
  phase text: Pending until it has a place, then Running.
  podIP text: Its address.
  podIPs PodIP[]: One address of each IP family, the one in podIP first.
  hostIP text: The address of its node.
  startTime time: Since when it runs.
  conditions Condition[]: Ready is what counts: only ready pods get connections.
  containerStatuses ContainerStatus[]: One for each container.
PodIP: An address of the pod.
  ip text: The address.
ContainerStatus: How a container is.
  name text: Which container.
  image text: The image that was named.
  imageID text: Always empty: no image is pulled here.
  ready bool: Whether it answers its readiness probe.
  started bool: Whether it has begun.
  restartCount number: How often it was started again. Always 0 here.
  state ContainerState: What it does now.
ContainerState: What it does now.
  running ContainerRunning: It runs.
ContainerRunning: It runs.
  startedAt time: Since when.
`
