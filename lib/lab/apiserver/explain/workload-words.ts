/** Deployments, ReplicaSets and pods: what the small controllers work on. */
export const workloadWords = `
Deployment: A number of equal pods. A change of the template replaces them step by step.
  status DeploymentStatus: The pods that it has now.
DeploymentSpec: How many pods, and of which kind.
  replicas: How many pods are wanted. The default is 1.
  selector: Finds the pods. The template needs the same labels.
  template: The form of each pod.
  strategy: How pods are replaced when the template changes.
  paused: Whether changes of the template wait. kubectl rollout pause sets it.
  revisionHistoryLimit: How many older ReplicaSets are kept, for kubectl rollout undo. The default is 10.
  minReadySeconds: This server does not wait for it.
  progressDeadlineSeconds: This server never gives up.
DeploymentStrategy: How pods are replaced when the template changes.
  type: RollingUpdate replaces them one by one; Recreate ends all old ones first. The default is RollingUpdate.
  rollingUpdate RollingUpdate: How many pods are replaced at a time.
RollingUpdate: How many pods are replaced at a time. If both are 0, one pod may be missing.
  maxSurge IntOrString: How many pods there may be above replicas: a number or a percentage. The default is 25%.
  maxUnavailable IntOrString: How many pods may be missing: a number or a percentage. The default is 25%.
DeploymentStatus: The pods that it has now.
  observedGeneration number: The metadata.generation that this status is about.
  replicas number: How many pods there are, old and new.
  updatedReplicas number: How many are of the newest template.
  readyReplicas number: How many are ready.
  availableReplicas number: Here the same as readyReplicas.
  unavailableReplicas number: How many are missing.
  conditions Condition[]: Available, and Progressing with how far a rollout is.
ReplicaSet: The pods of one version of a Deployment.
  spec ReplicaSetSpec: How many pods, and of which kind.
  status ReplicaSetStatus: The pods that it has now.
ReplicaSetSpec: How many pods, and of which kind.
  replicas number: How many pods are wanted. The Deployment writes it. The default is 1.
  selector LabelSelector: Finds the pods. pod-template-hash tells the versions apart.
  template PodTemplateSpec: The form of each pod. It does not change; a Deployment makes another ReplicaSet.
  minReadySeconds number: This server does not wait for it.
ReplicaSetStatus: The pods that it has now.
  observedGeneration number: The metadata.generation that this status is about.
  replicas number: How many pods there are.
  fullyLabeledReplicas number: Here the same as replicas.
  readyReplicas number: How many are ready.
  availableReplicas number: Here the same as readyReplicas.
PodTemplateSpec: The form of each pod.
Pod: One or more containers with one address. In the playground, a small server that tells its name.
  status PodStatus: Whether it runs, and where.
PodSpec: What runs in a pod, and where. This server knows only some fields of it, and stores the others.
  containers: The programs. This server starts none of them; it only reads their ports.
  nodeName: The node that it runs on. The server chooses the one with the fewest pods.
  nodeSelector: Labels that its node needs.
  restartPolicy: Always, OnFailure or Never. Here no pod ends by itself.
  terminationGracePeriodSeconds: How many seconds the pod may answer its last requests after it was deleted. The default is 30.
  dnsPolicy: Which DNS server it asks. There is no DNS here.
  serviceAccountName: Its name when it asks the API. Nothing here reads it.
  hostNetwork: It uses the addresses of its node. In the playground it has one of its own.
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
  conditions Condition[]: The most important one is Ready: only ready pods get connections.
  containerStatuses ContainerStatus[]: One for each container.
PodIP: An address of the pod.
  ip text: The address.
ContainerStatus: The state of a container.
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
autoscaling/v1/HorizontalPodAutoscaler: Changes the number of pods with their load. This server stores it, and scales nothing.
  spec: What it would scale, and between which numbers.
AutoscalerSpec: What it would scale, and between which numbers.
  scaleTargetRef: What it would scale.
  minReplicas: The fewest pods.
  maxReplicas: The most pods.
  targetCPUUtilizationPercentage: The use of the processor that it would aim at.
ScaleTarget: What it would scale.
  name: Its name.
`
