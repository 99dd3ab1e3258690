{{/*
Names are fixed and do not follow the release's: the ConfigMap, the labels and the
addresses that pods carry are a contract, and there is one mesh in a cluster.
*/}}

{{/* Labels of every object. Takes a dict of root and component. */}}
{{- define "evenkeel.labels" -}}
{{ include "evenkeel.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels by which a component's pods are selected; they never change. */}}
{{- define "evenkeel.selector" -}}
app.kubernetes.io/name: evenkeel
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* An image: the override, or registry/name:tag. Takes a dict of root, name, override. */}}
{{- define "evenkeel.image" -}}
{{- $image := .root.Values.image -}}
{{- .override | default (printf "%s/%s:%s" $image.registry .name ($image.tag | default .root.Chart.AppVersion)) -}}
{{- end }}

{{/* Namespaces that the webhook never sees, besides its own. */}}
{{- define "evenkeel.excluded" -}}
- {{ .Release.Namespace }}
- kube-system
- kube-node-lease
{{- end }}

{{/* The memory that Go may use: four fifths of the limit, so that the collector works
     harder before the kernel kills. Nothing for quantities in other units. */}}
{{- define "evenkeel.gomemlimit" -}}
{{- $limit := dig "limits" "memory" "" . | toString -}}
{{- if regexMatch "^[0-9]+[KMG]i$" $limit -}}
{{- $unit := substr (sub (len $limit) 2 | int) (len $limit) $limit -}}
{{- $factor := get (dict "Ki" 1 "Mi" 1024 "Gi" 1048576) $unit -}}
{{- printf "%dKiB" (div (mul (trimSuffix $unit $limit | int64) $factor 4) 5) -}}
{{- end -}}
{{- end }}
