import { at, listAt, textAt, textMapAt, type Json } from './json.js'
import type { KubeObject } from './object.js'
import { badRequest } from './status.js'

export type Match = (object: KubeObject) => boolean

interface Requirement {
  readonly key: string
  readonly operator: 'in' | 'notin' | 'exists' | 'absent'
  readonly values: readonly string[]
}

const matchAll: Match = () => true

/** `a=b,c!=d,e in (x,y),f notin (z),g,!h` */
export function parseLabelSelector(text: string): Match {
  // A comma inside parentheses is part of a requirement.
  const requirements = partsOf(text, /,(?![^(]*\))/).map(parseRequirement)
  if (requirements.length === 0) return matchAll
  return (object) => {
    const labels = object.metadata.labels ?? {}
    return requirements.every((requirement) => fulfils(labels, requirement))
  }
}

/** The selector of a Service: every pair must be there. */
export function matchesLabels(
  object: KubeObject,
  wanted: Readonly<Record<string, string>>,
): boolean {
  const labels = object.metadata.labels ?? {}
  return Object.entries(wanted).every(
    ([key, value]) => Object.hasOwn(labels, key) && labels[key] === value,
  )
}

/**
 * `spec.clusterIP!=None,metadata.name=x`. A real server knows a fixed set of fields for each
 * kind; here the path is simply looked up, and an absent field is the empty text.
 */
export function parseFieldSelector(text: string): Match {
  const terms = partsOf(text, ',').map(parseFieldTerm)
  if (terms.length === 0) return matchAll
  return (object) =>
    terms.every(({ path, equal, value }) => (fieldText(at(object, ...path)) === value) === equal)
}

function parseFieldTerm(term: string) {
  const found = /^([^=!]+?)\s*(!=|==|=)\s*(.*)$/.exec(term)
  const [, field, operator, value] = found ?? []
  if (field === undefined || value === undefined) {
    throw badRequest(`invalid field selector ${JSON.stringify(term)}; use field=value`)
  }
  return { path: field.split('.'), equal: operator !== '!=', value }
}

function fieldText(value: Json | undefined): string {
  if (typeof value === 'string') return value
  return typeof value === 'number' || typeof value === 'boolean' ? String(value) : ''
}

function parseRequirement(term: string): Requirement {
  const set = /^(\S+)\s+(in|notin)\s*\(([^)]*)\)$/.exec(term)
  if (set) {
    const [, key = '', operator, values = ''] = set
    return {
      key,
      operator: operator === 'in' ? 'in' : 'notin',
      values: values.split(',').map((value) => value.trim()),
    }
  }
  const pair = /^([^\s!=]+)\s*(!=|==|=)\s*([^\s=!]*)$/.exec(term)
  if (pair) {
    const [, key = '', operator, value = ''] = pair
    return { key, operator: operator === '!=' ? 'notin' : 'in', values: [value] }
  }
  if (/^![^\s!=()]+$/.test(term)) return { key: term.slice(1), operator: 'absent', values: [] }
  if (/^[^\s!=()]+$/.test(term)) return { key: term, operator: 'exists', values: [] }
  throw badRequest(`unable to parse requirement ${JSON.stringify(term)} of the label selector`)
}

function fulfils(labels: Readonly<Record<string, string>>, requirement: Requirement): boolean {
  const value = Object.hasOwn(labels, requirement.key) ? labels[requirement.key] : undefined
  switch (requirement.operator) {
    case 'exists':
      return value !== undefined
    case 'absent':
      return value === undefined
    case 'in':
      return value !== undefined && requirement.values.includes(value)
    case 'notin':
      return value === undefined || !requirement.values.includes(value)
  }
}

function partsOf(text: string, separator: string | RegExp): readonly string[] {
  return text
    .split(separator)
    .map((term) => term.trim())
    .filter((term) => term !== '')
}

/** A selector object as Deployments carry it: matchLabels and matchExpressions. */
export function matchesSelector(object: KubeObject, selector: Json | undefined): boolean {
  if (!matchesLabels(object, textMapAt(selector, 'matchLabels'))) return false
  return listAt(selector, 'matchExpressions').every((each) => matchesExpression(object, each))
}

const operators: Readonly<Record<string, Requirement['operator']>> = {
  In: 'in',
  NotIn: 'notin',
  Exists: 'exists',
  DoesNotExist: 'absent',
}

function matchesExpression(object: KubeObject, expression: Json): boolean {
  const operator = operators[textAt(expression, 'operator')]
  if (operator === undefined) return false
  return fulfils(object.metadata.labels ?? {}, {
    key: textAt(expression, 'key'),
    operator,
    values: listAt(expression, 'values').map(String),
  })
}
