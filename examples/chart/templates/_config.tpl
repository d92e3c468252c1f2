{{/* The configuration file; what the user gives wins. */}}
{{- define "kube-proxy-ts.config" -}}
{{- $fallback := .Values.modeFallback | default (eq .Values.mode "userspace" | ternary "none" "userspace") -}}
{{- $config := dict
  "apiVersion" "kubeproxy.config.k8s.io/v1alpha1"
  "kind" "KubeProxyConfiguration"
  "mode" .Values.mode
  "clusterCIDR" .Values.clusterCIDR
  "healthzBindAddress" "0.0.0.0:10256"
  "metricsBindAddress" "127.0.0.1:10249"
  "modeFallback" $fallback -}}
{{- if eq .Values.mode "userspace" }}{{ $_ := set $config "userspace" (dict "drainTimeout" "30s") }}{{ end -}}
{{- /* Node ports on 127.0.0.1 need a kernel setting that opens a hole of its own (CVE-2020-8558). */ -}}
{{- if eq .Values.mode "iptables" }}{{ $_ := set $config "iptables" (dict "localhostNodePorts" false) }}{{ end -}}
{{- if eq .Values.mode "ipvs" }}{{ $_ := set $config "ipvs" (dict "scheduler" "rr" "strictARP" false) }}{{ end -}}
{{- if eq .Values.mode "ebpf" }}{{ $_ := set $config "ebpf" (dict "bpffs" "/sys/fs/bpf" "cgroup" "/host/cgroup") }}{{ end -}}
{{- mergeOverwrite $config (deepCopy (.Values.config | default dict)) | toYaml -}}
{{- end -}}

{{/* The port of an address; the usual one where it names none, as the program takes it. */}}
{{- define "kube-proxy-ts.port" -}}
{{- regexFind "(\\.[0-9]+|\\]):[0-9]+$" (first .) | regexFind "[0-9]+$" | default (last .) -}}
{{- end -}}

{{/* The ring of flows needs a system call that only the list of ebpf mode has. */}}
{{- define "kube-proxy-ts.seccomp" -}}
{{- $mode := and .Values.flows (eq .Values.seccomp "Localhost") | ternary "ebpf" .Values.mode -}}
{{- .Files.Get (printf "files/seccomp/%s.json" $mode) -}}
{{- end -}}

{{/* The names change with the content, so that pods roll, and those of a rollback find their own. */}}
{{- define "kube-proxy-ts.configName" -}}
kube-proxy-ts-config-{{ printf "%s%s" (include "kube-proxy-ts.config" .) (include "kube-proxy-ts.seccomp" .) | sha256sum | trunc 10 }}
{{- end -}}
{{- define "kube-proxy-ts.apiServerName" -}}
kube-proxy-ts-api-server-{{ .Values.apiServer | toJson | sha256sum | trunc 10 }}
{{- end -}}

{{- define "kube-proxy-ts.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end -}}
