{{- define "sluice.labels" -}}
app.kubernetes.io/part-of: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "sluice.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}

{{- define "sluice.homeClaim" -}}
{{ .Values.home.existingClaim | default (printf "%s-home" .Release.Name) }}
{{- end }}

{{- define "sluice.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
# A volume of many files is not searched at each start.
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "sluice.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Takes a list: the root context, then the kinds of secrets. */}}
{{- define "sluice.secretVolumes" -}}
{{- $root := first . }}
{{- range rest . }}
{{- if index $root.Values.secrets . }}
- name: {{ kebabcase . }}
  secret: {secretName: {{ index $root.Values.secrets . }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- end }}

{{/* The kind of the secret with a login of the control database. Takes a list: the root context, and the kind that has it if it is set. */}}
{{- define "sluice.login" -}}
{{- ternary (index . 1) "database" (ne "" (index (first .).Values.secrets (index . 1) | default "")) }}
{{- end }}

{{- define "sluice.secretMounts" -}}
{{- $root := first . }}
{{- range rest . }}
{{- if index $root.Values.secrets . }}
- {name: {{ kebabcase . }}, mountPath: /run/secrets/sluice/{{ . }}, readOnly: true}
{{- end }}
{{- end }}
{{- end }}

{{- define "sluice.variables" -}}
{{- range $name, $value := .Values.settings }}
- {name: {{ $name }}, value: {{ $value | toString | quote }}}
{{- end }}
- {name: SLUICE_SECRETS, value: /run/secrets/sluice}
{{- end }}

{{/* Takes a list: the root context, then ports. The port of the cluster's DNS is always among them. */}}
{{- define "sluice.egress" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
- ports:
    {{- range index . 1 | uniq }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  to: [{ipBlock: {cidr: {{ (first .).Values.networkPolicy.cidr }}}}]
{{- end }}
