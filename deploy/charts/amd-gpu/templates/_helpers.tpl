{{/* A number, or the same as text, the way a flag takes it: 1.0 as 1, 2000000 not as 2e+06. */}}
{{- define "amd-gpu.number" -}}
{{- $number := float64 . -}}
{{- if eq $number (floor $number) -}}{{ int64 $number }}{{- else -}}{{ $number }}{{- end -}}
{{- end -}}

{{- define "amd-gpu.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "amd-gpu.labels" -}}
{{ include "amd-gpu.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end -}}

{{- define "amd-gpu.image" -}}
{{ .Values.dp.image.repository }}:{{ .Values.dp.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* The ServiceAccount of both DaemonSets; empty: the namespace's own, and no RBAC. */}}
{{- define "amd-gpu.account" -}}
{{- .Values.dp.serviceAccount.name | default (ternary (printf "%s-device-plugin" .Chart.Name) "" .Values.dp.serviceAccount.create) -}}
{{- end -}}

{{/* GPUs to keep back as the flag takes them, from a text or a list. */}}
{{- define "amd-gpu.excluded" -}}
{{- if kindIs "slice" .Values.dp.excludeGPUs -}}{{ join "," .Values.dp.excludeGPUs }}{{- else -}}{{ .Values.dp.excludeGPUs }}{{- end -}}
{{- end -}}

{{/* Where pods of both DaemonSets run, and with whose rights. */}}
{{- define "amd-gpu.placement" -}}
{{- with include "amd-gpu.account" . }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
priorityClassName: system-node-critical
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .Values.node_selector_enabled }}
nodeSelector:
  {{- toYaml .Values.node_selector | nindent 2 }}
{{- end }}
{{- end -}}
