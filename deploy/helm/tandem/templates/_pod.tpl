{{- /*
A server, or a machine of one where there are several nodes. The dict has "root", and "answers":
whether the pod has the router.
*/ -}}
{{- define "tandem.pod" -}}
{{- $answers := .answers -}}
{{- with .root -}}
{{- $isGroup := gt (int .Values.nodes) 1 -}}
metadata:
  labels:
    {{- include "tandem.selector" . | nindent 4 }}
    {{- if $isGroup }}
    app.kubernetes.io/component: {{ ternary "leader" "worker" $answers }}
    {{- end }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # Settings are read at the start: others need another pod.
    checksum/config: {{ include "tandem.settings" . | sha256sum }}
    {{- if and $answers (not .Values.serviceMonitor.enabled) }}
    prometheus.io/scrape: "true"
    prometheus.io/port: "3000"
    {{- end }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- with include "tandem.serviceAccount" . }}
  serviceAccountName: {{ . }}
  {{- end }}
  # A server asks nothing of Kubernetes.
  automountServiceAccountToken: false
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  # preStop's seconds, those of running requests, and the processes' end after them.
  terminationGracePeriodSeconds: {{ add .Values.gracefulTerminationSeconds 30 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    fsGroup: 10001
    seccompProfile:
      type: RuntimeDefault
  containers:
    - name: tandem
      image: {{ include "tandem.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - {{ .Values.model | quote }}
        - --config
        - /etc/tandem/tandem.yaml
        {{- range .Values.extraArgs }}
        - {{ . | quote }}
        {{- end }}
      {{- with .Values.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- $keys := .Values.apiKeyFileSecretName }}
      {{- if or .Values.secretName .Values.extraEnv }}
      env:
        {{- if $isGroup }}
        - name: SHARD_TOKEN
          valueFrom:
            secretKeyRef:
              name: {{ .Values.secretName }}
              key: shard-token
        {{- end }}
        {{- if .Values.front.enabled }}
        {{- include "tandem.frontSecret" . | nindent 8 }}
        {{- end }}
        {{- with .Values.secretName }}
        {{- if not $keys }}
        - name: API_KEY
          valueFrom:
            secretKeyRef:
              name: {{ . }}
              key: api-key
              optional: true
        {{- end }}
        - name: HF_TOKEN
          valueFrom:
            secretKeyRef:
              name: {{ . }}
              key: hf-token
              optional: true
        {{- end }}
        {{- with .Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      {{- if $answers }}
      ports:
        - name: http
          containerPort: 3000
      {{- end }}
      resources:
        {{- $limits := .Values.resources.limits | default dict }}
        {{- if .Values.gpus }}
        {{- $limits = merge (dict "nvidia.com/gpu" .Values.gpus) $limits }}
        {{- end }}
        {{- merge (dict "limits" $limits) .Values.resources | toYaml | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        capabilities:
          drop: [ALL]
      {{- if $answers }}
      startupProbe:
        httpGet: {path: /health/ready, port: http}
        periodSeconds: 5
        failureThreshold: {{ div .Values.startupSeconds 5 }}
      readinessProbe:
        httpGet: {path: /health/ready, port: http}
        periodSeconds: 2
        failureThreshold: 1
      {{- if $isGroup }}
      # Not /health/progress, which is 503 while a worker is away.
      {{- end }}
      livenessProbe:
        httpGet: {path: {{ ternary "/health/live" "/health/progress" $isGroup }}, port: http}
        periodSeconds: 5
        failureThreshold: 6
      lifecycle:
        preStop:
          # Until no node sends new requests here any more; SIGTERM drains then.
          exec:
            command: ["sleep", "5"]
      {{- end }}
      volumeMounts:
        - name: models
          mountPath: /models
          {{- if eq .Values.models.accessMode "ReadOnlyMany" }}
          readOnly: true
          {{- end }}
        - name: config
          mountPath: /etc/tandem
        {{- if .Values.apiKeyFileSecretName }}
        - name: keys
          mountPath: /etc/tandem-keys
          readOnly: true
        {{- end }}
        - name: shm
          mountPath: /dev/shm
  volumes:
    - name: models
      {{- if .Values.models.ephemeral }}
      ephemeral:
        volumeClaimTemplate:
          spec:
            {{- include "tandem.claimSpec" . | nindent 12 }}
      {{- else }}
      persistentVolumeClaim:
        claimName: {{ include "tandem.claim" . }}
      {{- end }}
    - name: config
      configMap:
        name: {{ include "tandem.name" . }}
    {{- with .Values.apiKeyFileSecretName }}
    - name: keys
      secret:
        secretName: {{ . }}
    {{- end }}
    # NCCL's, between the ranks of one server.
    - name: shm
      emptyDir:
        medium: Memory
        sizeLimit: 1Gi
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}
