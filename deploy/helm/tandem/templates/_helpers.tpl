{{- define "tandem.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tandem.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tandem.labels" -}}
{{ include "tandem.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* Of the pods that answer requests, be they servers or leaders of several nodes. */ -}}
{{- define "tandem.answering" -}}
{{ include "tandem.selector" . }}
{{- if gt (int .Values.nodes) 1 }}
app.kubernetes.io/component: leader
{{- end }}
{{- end -}}

{{- define "tandem.frontName" -}}
{{ include "tandem.name" . }}-front
{{- end -}}

{{- define "tandem.frontSelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-front
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tandem.frontSecret" -}}
- name: FRONT_SECRET
  valueFrom:
    secretKeyRef:
      name: {{ .Values.secretName }}
      key: front-secret
{{- end -}}

{{- define "tandem.image" -}}
"{{ .Values.image.repository }}:{{ .Values.image.tag | default (ternary "cuda" "cpu" (gt (int .Values.gpus) 0)) }}"
{{- end -}}

{{- define "tandem.claim" -}}
{{- .Values.models.existingClaim | default (printf "%s-models" (include "tandem.name" .)) -}}
{{- end -}}

{{- define "tandem.claimSpec" -}}
accessModes: [{{ .Values.models.accessMode }}]
{{- with .Values.models.storageClassName }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ .Values.models.storage }}
{{- end -}}

{{- define "tandem.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "tandem.name" .) "" .Values.serviceAccount.create) -}}
{{- end -}}

{{- define "tandem.settings" -}}
graceful-termination-timeout: {{ .Values.gracefulTerminationSeconds }}
shard-startup-timeout: {{ .Values.startupSeconds }}
{{- if .Values.gpus }}
num-shard: {{ mul .Values.gpus .Values.nodes }}
{{- end }}
{{- if .Values.apiKeyFileSecretName }}
api-key-file: /etc/tandem-keys/keys.toml
{{- end }}
{{- with .Values.config }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* What one node alone can mount. */ -}}
{{- define "tandem.isBound" -}}
{{- if and (not .Values.models.ephemeral) (hasPrefix "ReadWriteOnce" .Values.models.accessMode) -}}true{{- end -}}
{{- end -}}
