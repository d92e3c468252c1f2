import { ConfigError } from '../errors.js'

/** Where a value is set, for messages and for /configz. */
export type Origin =
  | { readonly from: 'default' }
  | { readonly from: 'flag'; readonly flag: string }
  | { readonly from: 'file'; readonly file: string; readonly line: number }

export interface Setting {
  readonly value: unknown
  readonly origin: Origin
}

/** By path; only values that are set. */
export type Settings = ReadonlyMap<string, Setting>

/** `kube-proxy.yaml:12: iptables.syncPeriod` or `--iptables-sync-period`. */
export function placeOf(path: string, origin: Origin | undefined): string {
  if (origin?.from === 'file') return `${origin.file}:${origin.line}: ${path}`
  return origin?.from === 'flag' ? `--${origin.flag}` : path
}

/** `file:line`, `--flag` or `default`. */
export function originText(origin: Origin | undefined): string {
  if (origin?.from === 'file') return `${origin.file}:${origin.line}`
  return origin?.from === 'flag' ? `--${origin.flag}` : 'default'
}

/** A value as JSON, cut to fit on one line. */
export function quote(value: unknown): string {
  const text = value === undefined ? 'undefined' : JSON.stringify(value)
  return text.length > 80 ? `${text.slice(0, 77)}…` : text
}

/** Throws all problems as one ConfigError, so that they can be corrected together. */
export function throwProblems(problems: readonly string[]): void {
  if (problems.length > 0) throw new ConfigError(problems.join('\n'))
}
