{{- define "sluice.name" -}}
{{- printf "%s" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "sluice.labels" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "sluice.secret" -}}
{{- .Values.clusterKey.existingSecret | default (printf "%s-cluster-key" (include "sluice.name" .)) -}}
{{- end -}}

{{- define "sluice.mds" -}}
{{- printf "%s-mds.%s.svc" (include "sluice.name" .) .Release.Namespace -}}
{{- end -}}

{{- define "sluice.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* A Secret's files are root's, and read by the servers through their group; the servers take a key that only its owner reads. */}}
{{- define "sluice.keep" -}}
- name: key
  image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  {{- include "sluice.container" . | nindent 2 }}
  command: [install, -m, "0600", /secret/cluster.key, /etc/sluice/cluster.key]
  volumeMounts:
    - {name: secret, mountPath: /secret, readOnly: true}
    - {name: key, mountPath: /etc/sluice}
{{- end -}}

{{- define "sluice.key" -}}
- name: secret
  secret:
    secretName: {{ include "sluice.secret" . }}
    defaultMode: 0440
- name: key
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
{{- end -}}

{{/* What clients have to do, if there is a certificate. */}}
{{- define "sluice.tls.demand" -}}
{{- $tls := .Values.tls -}}
{{- if not (has $tls.demand (list "offer" "require" "mutual")) -}}
{{- fail "tls.demand is offer, require or mutual" -}}
{{- end -}}
{{- if $tls.existingSecret -}}
{{- if and (eq $tls.demand "mutual") (not $tls.clients.existingSecret) -}}
{{- fail "tls.demand=mutual needs the authorities of clients: tls.clients.existingSecret" -}}
{{- end -}}
{{- $tls.demand -}}
{{- else if or (ne $tls.demand "offer") $tls.ds.existingSecret $tls.clients.existingSecret -}}
{{- fail "TLS needs a certificate: tls.existingSecret" -}}
{{- end -}}
{{- end -}}

{{/* For probes: nobody is answered in clear. */}}
{{- define "sluice.tls.demanded" -}}
{{- if has (include "sluice.tls.demand" .) (list "require" "mutual") -}}yes{{- end -}}
{{- end -}}

{{- define "sluice.tls.args" -}}
- --tls-certificate=/etc/sluice-tls/tls.crt
- --tls-key=/etc/sluice-tls/tls.key
{{- if .Values.tls.clients.existingSecret }}
- --tls-clients=/etc/sluice-tls/clients.crt
{{- end }}
- --tls={{ include "sluice.tls.demand" . }}
{{- end -}}

{{/* Not by subPath: the kubelet would not replace the files. */}}
{{- define "sluice.tls.mount" -}}
- {name: tls, mountPath: /etc/sluice-tls, readOnly: true}
{{- end -}}

{{/* With the certificate in the Secret `secret`. One volume, so that all is replaced at once. */}}
{{- define "sluice.tls.volume" -}}
- name: tls
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ .secret }}
          items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]
      {{- with .root.Values.tls.clients.existingSecret }}
      - secret:
          name: {{ . }}
          items: [{key: ca.crt, path: clients.crt}]
      {{- end }}
{{- end -}}

{{/* Whether stores are made: with hostNetwork a data server that is registered is known by its address. */}}
{{- define "sluice.ds.stores" -}}
{{- $ds := .Values.ds -}}
{{- if kindIs "bool" $ds.newStores -}}
{{- if $ds.newStores -}}yes{{- end -}}
{{- else if $ds.newStores -}}
{{- fail "ds.newStores is true, false or empty" -}}
{{- else if $ds.hostNetwork -}}yes{{- end -}}
{{- end -}}

{{/* What a data server is told, when its store is made and when it serves. */}}
{{- define "sluice.ds.args" -}}
{{- $ds := .Values.ds -}}
- --mds={{ include "sluice.mds" . }}
- --data-dir=/srv/sluice
- --key=/etc/sluice/cluster.key
- --listen=[::]:{{ $ds.port }}
- --advertise=[$(ADDRESS)]:{{ $ds.port }}
{{- if include "sluice.tls.demand" . }}
{{ include "sluice.tls.args" . }}
{{- end }}
{{- range $ds.args }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "sluice.ds.mounts" -}}
- {name: data, mountPath: /srv/sluice}
- {name: key, mountPath: /etc/sluice, readOnly: true}
{{- if include "sluice.tls.demand" . }}
{{ include "sluice.tls.mount" . }}
{{- end }}
{{- end -}}

{{/* The node's address with hostNetwork, else the pod's: what clients are told. */}}
{{- define "sluice.ds.env" -}}
- name: ADDRESS
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end -}}

{{/* The pod of a data server; the volume `data` is the caller's. */}}
{{- define "sluice.ds.pod" -}}
{{- $ds := .Values.ds -}}
metadata:
  labels:
    {{- include "sluice.selector" . | nindent 4 }}
    app.kubernetes.io/component: ds
spec:
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  automountServiceAccountToken: false
  hostNetwork: {{ $ds.hostNetwork }}
  {{- if $ds.hostNetwork }}
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  securityContext: {{- toYaml .Values.podSecurityContext | nindent 4 }}
  terminationGracePeriodSeconds: 30
  {{- if eq $ds.kind "statefulSet" }}
  # Two data servers on one node would share its port, and its fate.
  affinity:
    podAntiAffinity:
      {{- if $ds.hostNetwork }}
      requiredDuringSchedulingIgnoredDuringExecution:
        - topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "sluice.selector" . | nindent 14 }}
              app.kubernetes.io/component: ds
      {{- else }}
      preferredDuringSchedulingIgnoredDuringExecution:
        - weight: 100
          podAffinityTerm:
            topologyKey: kubernetes.io/hostname
            labelSelector:
              matchLabels:
                {{- include "sluice.selector" . | nindent 16 }}
                app.kubernetes.io/component: ds
      {{- end }}
  {{- end }}
  {{- with $ds.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $ds.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  initContainers: {{- include "sluice.keep" . | nindent 4 }}
    {{- if include "sluice.ds.stores" . }}
    # Once: a store that is there is left alone, without asking anybody.
    - name: store
      image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      {{- include "sluice.container" . | nindent 6 }}
      env: {{- include "sluice.ds.env" . | nindent 8 }}
      args:
        - ds
        - add
        - --once
        {{- include "sluice.ds.args" . | nindent 8 }}
      resources: {{- toYaml $ds.resources | nindent 8 }}
      volumeMounts: {{- include "sluice.ds.mounts" . | nindent 8 }}
    {{- end }}
  containers:
    - name: ds
      image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      {{- include "sluice.container" . | nindent 6 }}
      env: {{- include "sluice.ds.env" . | nindent 8 }}
      args:
        - ds
        {{- if .Values.metrics.enabled }}
        - --metrics=[::]:{{ .Values.metrics.dsPort }}
        {{- end }}
        {{- include "sluice.ds.args" . | nindent 8 }}
      ports:
        - {name: nfs, containerPort: {{ $ds.port }}}
        {{- if .Values.metrics.enabled }}
        - {name: metrics, containerPort: {{ .Values.metrics.dsPort }}}
        {{- end }}
      # It listens before it has registered: clients of its data wait meanwhile, and a metadata server that is away must not
      # get data servers killed.
      livenessProbe:
        tcpSocket: {port: {{ $ds.port }}}
        periodSeconds: 10
        failureThreshold: 6
      # It serves its clients: an update goes on to the next one only then, and nobody drains another node meanwhile.
      readinessProbe:
        {{- if include "sluice.tls.demanded" . }}
        exec: {command: [sluice, ds, ready, "127.0.0.1:{{ $ds.port }}", --key, /etc/sluice/cluster.key]}
        {{- else }}
        exec: {command: [sluice, ds, ready, "127.0.0.1:{{ $ds.port }}"]}
        {{- end }}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 2
      # A store that lost power replays its journal before it listens.
      startupProbe:
        tcpSocket: {port: {{ $ds.port }}}
        periodSeconds: 5
        failureThreshold: 120
      resources: {{- toYaml $ds.resources | nindent 8 }}
      volumeMounts: {{- include "sluice.ds.mounts" . | nindent 8 }}
  volumes:
    {{- include "sluice.key" . | nindent 4 }}
    {{- if include "sluice.tls.demand" . }}
    {{- $tls := .Values.tls }}
    {{- include "sluice.tls.volume" (dict "root" . "secret" ($tls.ds.existingSecret | default $tls.existingSecret)) | nindent 4 }}
    {{- end }}
    {{- if eq $ds.kind "daemonSet" }}
    - name: data
      hostPath: {path: {{ $ds.hostPath }}, type: Directory}
    {{- end }}
{{- end -}}
