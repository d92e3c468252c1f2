import type { JsonObject } from './json.js'
import { causesOf, invalidValue, required, type Cause } from './status.js'

export type NameRule = 'subdomain' | 'label' | 'service' | 'path'

const label = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/
const subdomain = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$/
const service = /^[a-z]([-a-z0-9]*[a-z0-9])?$/
const qualifiedName = /^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$/
const labelValue = /^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$/

export const labelRule =
  "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character"

const labelValueRule =
  "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character, at most 63"

const rules: Readonly<Record<NameRule, readonly [RegExp, number, string]>> = {
  subdomain: [
    subdomain,
    253,
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
  ],
  label: [label, 63, labelRule],
  service: [
    service,
    63,
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character",
  ],
  path: [/^(?!\.{1,2}$)[^/%]+$/, 253, "must not be '.' or '..' and must not contain '/' or '%'"],
}

export function validateName(field: string, name: string, rule: NameRule): readonly Cause[] {
  if (name === '') return [required(field, 'name or generateName is required')]
  const [pattern, longest, why] = rules[rule]
  if (name.length > longest) {
    return [invalidValue(field, name, `must be no more than ${longest} characters`)]
  }
  return pattern.test(name) ? [] : [invalidValue(field, name, why)]
}

export function isLabelName(text: string): boolean {
  return text.length <= 63 && label.test(text)
}

export function isSubdomain(text: string): boolean {
  return text.length <= 253 && subdomain.test(text)
}

/** The name of a port on a container: at most 15 characters, with a letter in it. */
export function isPortName(text: string): boolean {
  return text.length <= 15 && label.test(text) && /[a-z]/.test(text) && !text.includes('--')
}

export function validateLabels(field: string, labels: JsonObject): readonly Cause[] {
  return Object.entries(labels).flatMap(([key, value]) => {
    const isValue = typeof value === 'string' && value.length <= 63 && labelValue.test(value)
    return causesOf(
      !isQualifiedName(key) &&
        invalidValue(field, key, 'a label key is an optional DNS prefix and a name'),
      !isValue && invalidValue(field, value, labelValueRule),
    )
  })
}

/** All annotations of an object together. */
const longestAnnotations = 256 * 1024

export function validateAnnotations(
  field: string,
  annotations: Readonly<Record<string, string>>,
): readonly Cause[] {
  const entries = Object.entries(annotations)
  const bytes = new TextEncoder().encode(entries.flat().join('')).length
  const tooLong: Cause = {
    reason: 'FieldValueTooLong',
    message: `Too long: may not be more than ${longestAnnotations} bytes`,
    field,
  }
  return [
    ...entries
      .filter(([key]) => !isQualifiedName(key.toLowerCase()))
      .map(([key]) => invalidValue(field, key, 'a key is an optional DNS prefix and a name')),
    ...(bytes > longestAnnotations ? [tooLong] : []),
  ]
}

function isQualifiedName(key: string): boolean {
  const slash = key.indexOf('/')
  const prefix = slash < 0 ? undefined : key.slice(0, slash)
  const name = key.slice(slash + 1)
  if (prefix !== undefined && !isSubdomain(prefix)) return false
  return name.length <= 63 && qualifiedName.test(name)
}
