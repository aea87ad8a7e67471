{{/* A number, or the same as text, the way a flag takes it: 1.0 as 1, 2000000 not as 2e+06. */}}
{{- define "ppu.number" -}}
{{- $number := float64 . -}}
{{- if eq $number (floor $number) -}}{{ int64 $number }}{{- else -}}{{ $number }}{{- end -}}
{{- end -}}

{{- define "ppu.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 55 | trimSuffix "-" -}}
{{- end -}}

{{/* The release's name is no part of it: a node has one plugin. Room is left for -monitor. */}}
{{- define "ppu.fullname" -}}
{{- .Values.fullnameOverride | default (include "ppu.name" .) | trunc 55 | trimSuffix "-" -}}
{{- end -}}

{{- define "ppu.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end -}}

{{- define "ppu.selector" -}}
app.kubernetes.io/name: {{ include "ppu.name" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* Labels of the root's object of a component; what the chart needs wins over commonLabels. */}}
{{- define "ppu.labels" -}}
{{- $root := index . 0 -}}
{{- $own := include "ppu.selector" $root | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/component" (index . 1) -}}
{{- $_ := set $own "app.kubernetes.io/version" $root.Chart.AppVersion -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_") -}}
{{- $_ := set $own "hami.io/webhook" "ignore" -}}
{{- toYaml (merge $own (deepCopy $root.Values.commonLabels)) -}}
{{- end -}}

{{/* Metadata of the root's object of a component, but for its name. */}}
{{- define "ppu.metadata" -}}
labels:
  {{- include "ppu.labels" . | nindent 2 }}
{{- with (index . 0).Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "ppu.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "v%s" .Chart.AppVersion) }}
{{- end -}}

{{- define "ppu.configMap" -}}
{{- if .Values.config.create -}}
{{ include "ppu.fullname" . }}-config
{{- else -}}
{{ required "config.create is false: name the ConfigMap with the device configuration in config.existingConfigMapName" .Values.config.existingConfigMapName }}
{{- end -}}
{{- end -}}

{{/* Where pods of both DaemonSets run. Both are on the host's network. */}}
{{- define "ppu.placement" -}}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What both daemons see of the driver. A path of type File or Directory that is missing is told by an event. */}}
{{- define "ppu.driverMounts" -}}
- name: dev
  mountPath: /dev
- name: ppu-smi
  mountPath: /usr/local/bin/ppu-smi
  readOnly: true
- name: ppu-sdk
  mountPath: /usr/local/PPU_SDK
  readOnly: true
{{- end -}}

{{- define "ppu.driverVolumes" -}}
- name: dev
  hostPath:
    path: /dev
- name: ppu-smi
  hostPath:
    path: /usr/local/bin/ppu-smi
    type: File
- name: ppu-sdk
  hostPath:
    path: /usr/local/PPU_SDK
    type: Directory
- name: ppu-hami-core
  hostPath:
    path: /usr/local/ppu-hami-core
    type: DirectoryOrCreate
{{- end -}}
