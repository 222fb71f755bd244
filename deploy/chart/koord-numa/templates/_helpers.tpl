{{- define "koord-numa.name" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}{{ else if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "koord-numa.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: scheduler
{{- end }}

{{- define "koord-numa.labels" -}}
{{ include "koord-numa.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "koord-numa.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "koord-numa.name" .) .Values.serviceAccount.name }}{{ else }}{{ default "default" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{- define "koord-numa.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}{{ end }}
{{- end }}

{{- define "koord-numa.schedulerName" -}}
{{- $profiles := .Values.config.profiles | default (list dict) }}
{{- (first $profiles).schedulerName | default "koord-numa" }}
{{- end }}

{{- define "koord-numa.leaseNamespace" -}}
{{- dig "lease" "namespace" "koord-numa" .Values.config }}
{{- end }}

{{- define "koord-numa.leaseName" -}}
{{- dig "lease" "name" "koord-numa" .Values.config }}
{{- end }}

{{- define "koord-numa.nodeAgentSelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: node-agent
{{- end }}

{{- define "koord-numa.nodeAgentLabels" -}}
{{ include "koord-numa.nodeAgentSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- /* End with a message where the cluster has no ValidatingAdmissionPolicies. helm template knows the version only. */}}
{{- define "koord-numa.needsAdmissionPolicies" -}}
{{- $root := first . }}
{{- if not (or ($root.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy") (semverCompare ">=1.30.0-0" $root.Capabilities.KubeVersion.Version)) }}
{{- fail (printf "%s needs ValidatingAdmissionPolicy v1, which Kubernetes %s lacks" (last .) $root.Capabilities.KubeVersion.Version) }}
{{- end }}
{{- end }}
