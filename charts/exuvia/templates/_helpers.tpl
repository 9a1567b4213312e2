{{- define "exuvia.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* The release's name, with the chart's unless it is in there: 44 characters leave room for suffixes. */}}
{{- define "exuvia.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- default $full .Values.fullnameOverride | trunc 44 | trimSuffix "-" }}
{{- end }}

{{- define "exuvia.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "exuvia.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.create is false: name the account in serviceAccount.name" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "exuvia.leaseName" -}}
{{- default (include "exuvia.fullname" .) .Values.leaderElection.leaseName }}
{{- end }}

{{- define "exuvia.selectorLabels" -}}
app.kubernetes.io/name: {{ include "exuvia.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "exuvia.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "exuvia.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "exuvia.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{ end }}
{{- end }}
{{- end }}

{{- /* What the operator manages, as JSON: CRDs by name, and groups of which any CRD may be. Of exuvia.dev all CRDs are
known, so that group needs no wildcard. */}}
{{- define "exuvia.managed" -}}
{{- if not (or .Values.crds .Values.groups) }}
{{- fail "groups and crds are both empty, so nothing would be migrated: name a group (or \"*\"), or CRDs" }}
{{- end }}
{{- $crds := list }}
{{- $groups := list }}
{{- if .Values.crds }}
{{- range .Values.crds }}
{{- $crds = append $crds (kindIs "string" . | ternary . (get (kindIs "map" . | ternary . dict) "name")) }}
{{- end }}
{{- else if has "*" .Values.groups }}
{{- $groups = list "*" }}
{{- else }}
{{- if has "exuvia.dev" .Values.groups }}
{{- $crds = list "storagemigrations.exuvia.dev" }}
{{- end }}
{{- $groups = without .Values.groups "exuvia.dev" }}
{{- end }}
{{- dict "crds" ($crds | uniq | sortAlpha) "groups" ($groups | uniq | sortAlpha) | toJson }}
{{- end }}

{{- define "exuvia.subject" -}}
- kind: ServiceAccount
  name: {{ include "exuvia.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}
