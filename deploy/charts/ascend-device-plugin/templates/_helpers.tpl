{{- define "ascend.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "ascend.fullname" -}}
{{- .Values.fullnameOverride | default (include "ascend.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "ascend.daemonset" -}}
{{- .Values.daemonSet.name | default (include "ascend.fullname" .) -}}
{{- end -}}

{{- define "ascend.selector" -}}
app.kubernetes.io/component: hami-ascend-device-plugin
app.kubernetes.io/name: {{ include "ascend.name" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
hami.io/webhook: ignore
{{- end -}}

{{- define "ascend.labels" -}}
{{ include "ascend.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end -}}

{{/* A digest names one image for ever, so it wins over the tag. */}}
{{- define "ascend.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The ConfigMap that is made is the one that is mounted. */}}
{{- define "ascend.deviceConfigMap" -}}
{{- ternary .Values.config.deviceConfigMapName .Values.config.existingDeviceConfigMapName .Values.config.create -}}
{{- end -}}
