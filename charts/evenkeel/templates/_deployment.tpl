{{/*
What the Deployments of the control plane have in common. Takes a dict of
root, component, values (the component's), and what differs: args, ports, mounts
and volumes as text of YAML lists, adminPort, annotations as a map, minReadySeconds.
*/}}
{{- define "evenkeel.deployment" -}}
{{- $root := .root -}}
{{- $v := .values -}}
{{- $name := printf "evenkeel-%s" .component -}}
{{- $selector := include "evenkeel.selector" . -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "evenkeel.labels" . | nindent 4 }}
spec:
  replicas: {{ $v.replicas }}
  revisionHistoryLimit: 3
  {{- with .minReadySeconds }}
  minReadySeconds: {{ . }}
  {{- end }}
  selector:
    matchLabels:
      {{- $selector | nindent 6 }}
  strategy:
    type: RollingUpdate
    # Never fewer than asked for: a replica leaves once its successor is ready.
    rollingUpdate: {maxUnavailable: 0, maxSurge: 1}
  template:
    metadata:
      labels:
        {{- with $v.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- include "evenkeel.labels" . | nindent 8 }}
      annotations:
        kubectl.kubernetes.io/default-container: {{ .component }}
        {{- with merge (dict) (.annotations | default dict) $v.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ $name }}
      {{- with $root.Values.imagePullSecrets }}
      imagePullSecrets:
        {{- range . }}
        - name: {{ . }}
        {{- end }}
      {{- end }}
      {{- with $v.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        seccompProfile: {type: RuntimeDefault}
      terminationGracePeriodSeconds: 30
      topologySpreadConstraints:
        # Nodes only. The scheduler leaves a node out of the reckoning that lacks the
        # key of any constraint, so one for zones would undo both where there are none.
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          # A cluster of one node is a cluster too.
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- $selector | nindent 14 }}
          matchLabelKeys: [pod-template-hash]
      {{- with $v.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $v.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      affinity:
        {{- if $v.affinity }}
        {{- toYaml $v.affinity | nindent 8 }}
        {{- else }}
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 50
              podAffinityTerm:
                topologyKey: topology.kubernetes.io/zone
                labelSelector:
                  matchLabels:
                    {{- $selector | nindent 20 }}
                matchLabelKeys: [pod-template-hash]
        {{- end }}
      containers:
        - name: {{ .component }}
          image: {{ include "evenkeel.image" (dict "root" $root "name" .component "override" $v.image) }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          args:
            {{- .args | nindent 12 }}
            - --log-level={{ $root.Values.log.level }}
            - --log-format={{ $root.Values.log.format }}
          env:
            - name: POD_NAMESPACE
              valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
            {{- with include "evenkeel.gomemlimit" $v.resources }}
            - name: GOMEMLIMIT
              value: {{ . }}
            {{- end }}
          ports:
            {{- .ports | nindent 12 }}
            - {name: admin, containerPort: {{ .adminPort }}, protocol: TCP}
          readinessProbe:
            httpGet: {path: /readyz, port: admin}
            periodSeconds: 2
            timeoutSeconds: 2
            failureThreshold: 3
          livenessProbe:
            httpGet: {path: /healthz, port: admin}
            initialDelaySeconds: 10
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          {{- with $v.resources }}
          resources:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          terminationMessagePolicy: FallbackToLogsOnError
          volumeMounts:
            {{- .mounts | nindent 12 }}
      volumes:
        {{- .volumes | nindent 8 }}
{{- end }}

{{/* A component may lose one replica to a drain at a time, also when it has only
     one: a budget of minAvailable 1 would then block the drain for ever. */}}
{{- define "evenkeel.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: evenkeel-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "evenkeel.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  # A replica that is not ready protects nothing.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "evenkeel.selector" . | nindent 6 }}
{{- end }}
