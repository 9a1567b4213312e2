{{- define "exuvia.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* The release's name, followed by the chart's name unless that is part of it. 44 characters leave room for suffixes. */}}
{{- define "exuvia.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- default $full .Values.fullnameOverride | trunc 44 | trimSuffix "-" }}
{{- end }}

{{- define "exuvia.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "exuvia.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.create is false: set serviceAccount.name to an existing account" .Values.serviceAccount.name }}
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

{{- /* As key=value: a key alone means the value true, as with the flag. */}}
{{- define "exuvia.optInLabel" -}}
{{- contains "=" .Values.optInLabel | ternary .Values.optInLabel (printf "%s=true" .Values.optInLabel) }}
{{- end }}

{{- /* Checks that the schema cannot make, or not with a helpful message. */}}
{{- define "exuvia.check" -}}
{{- $_ := include "exuvia.managed" . }}
{{- if and (not .Values.leaderElection.enabled) (gt (int64 .Values.replicas) 1) }}
{{- fail (printf "leaderElection.enabled is false, so each of %d replicas would write: set replicas to 1" (int64 .Values.replicas)) }}
{{- end }}
{{- $level := .Values.log.level | trim }}
{{- if not (or (contains "=" $level) (contains "," $level) (has (lower $level) (list "off" "error" "warn" "info" "debug" "trace"))) }}
{{- fail (printf "log.level: invalid level %q: expected error, warn, info, debug, trace, or directives such as info,exuvia_storage=debug" $level) }}
{{- end }}
{{- $grace := .Values.shutdownGrace }}
{{- $milliseconds := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 }}
{{- $graceMilliseconds := mul (regexFind "^[0-9]+" $grace | int64) (get $milliseconds (regexFind "[a-z]+$" $grace)) }}
{{- if gt $graceMilliseconds (mul (int64 .Values.terminationGracePeriodSeconds) 1000) }}
{{- fail (printf "shutdownGrace is %s, but the pod is killed after %d s: increase terminationGracePeriodSeconds" $grace (int64 .Values.terminationGracePeriodSeconds)) }}
{{- end }}
{{- end }}

{{- /* What the operator manages, as JSON: CRDs by name, and groups in which any CRD may be managed. All CRDs of exuvia.dev
are known, so that group needs no wildcard. */}}
{{- define "exuvia.managed" -}}
{{- if not (or .Values.crds .Values.groups) }}
{{- fail "groups and crds are both empty, so nothing would be migrated: set groups (\"*\" means all) or crds" }}
{{- end }}
{{- $crds := list }}
{{- $groups := list }}
{{- $name := "[a-z0-9]([-a-z0-9]*[a-z0-9])?" }}
{{- range .Values.groups }}
{{- if not (or (eq . "*") (regexMatch (printf "^%s(\\.%s)*$" $name $name) .)) }}
{{- fail (printf "groups: invalid API group %q: expected a name such as example.com, or \"*\" for all" .) }}
{{- end }}
{{- end }}
{{- if .Values.crds }}
{{- range .Values.crds }}
{{- $crd := kindIs "string" . | ternary . (get (kindIs "map" . | ternary . dict) "name") }}
{{- if not (regexMatch (printf "^[a-z]([-a-z0-9]*[a-z0-9])?(\\.%s){2,}$" $name) $crd) }}
{{- fail (printf "crds: invalid CRD name %q: expected <plural>.<group>, such as widgets.example.com" $crd) }}
{{- end }}
{{- $crds = append $crds $crd }}
{{- end }}
{{- else if has "*" .Values.groups }}
{{- $groups = list "*" }}
{{- else }}
{{- if has "exuvia.dev" .Values.groups }}
{{- $crds = list "datastoremigrations.exuvia.dev" "storagemigrations.exuvia.dev" }}
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
