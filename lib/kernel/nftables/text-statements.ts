import {
  checkedAddress,
  checkedInterface,
  checkedName,
  checkedPort,
  safeComment,
} from './identifiers.js'
import { sourceSeed } from '../jenkins-hash.js'
import type {
  DnatTarget,
  Draw,
  Field,
  NftFamily,
  Prefix,
  Rule,
  Statement,
  Verdict,
} from './model.js'

/** A rule nearly as `nft list` prints it; `nft` can read it. */
export function ruleText(family: NftFamily, rule: Rule): string {
  const statements = rule.statements.map((statement) => statementText(family, statement))
  const comment = rule.comment === undefined ? '' : ` comment "${safeComment(rule.comment)}"`
  return statements.join(' ') + comment
}

export function verdictText(verdict: Verdict): string {
  return verdict.to === 'jump' || verdict.to === 'goto'
    ? `${verdict.to} ${checkedName(verdict.chain)}`
    : verdict.to
}

function statementText(family: NftFamily, statement: Statement): string {
  switch (statement.kind) {
    case 'address':
      return `${family} ${statement.field} ${statement.not ? '!= ' : ''}${prefixesText(statement.cidrs)}`
    case 'member':
      return `${fieldsText(family, statement.fields)} @${checkedName(statement.set)}`
    case 'local':
      return `fib ${statement.field} type local`
    case 'interface': {
      const name = checkedInterface(statement.name)
      return `iifname ${statement.not ? '!= ' : ''}"${name}${statement.prefix ? '*' : ''}"`
    }
    case 'protocol':
      return `meta l4proto ${statement.protocol}`
    case 'connection':
      return statement.is === 'new' ? 'ct state new' : 'ct status dnat'
    case 'mark-test':
      return `meta mark & ${hex(statement.bits)} != 0`
    case 'mark-change':
      return `meta mark set meta mark ${statement.by === 'or' ? '|' : '^'} ${hex(statement.bits)}`
    case 'verdict-map':
      return `${fieldsText(family, statement.fields)} vmap @${checkedName(statement.map)}`
    case 'random-verdict':
      return `${drawText(family, statement.verdicts.length, statement.by)} vmap { ${numbered(statement.verdicts.map(verdictText))} }`
    case 'dnat':
      return dnatText(family, statement)
    case 'dnat-by-map':
      return `dnat ${family} to ${family} daddr . ${statement.protocol} dport . ${drawText(family, statement.choices)} map @${checkedName(statement.map)}`
    case 'dnat-by-source':
      return `meta l4proto ${statement.protocol} dnat ${family} to ${drawText(family, statement.places, 'source')} map @${checkedName(statement.map)}`
    case 'masquerade':
      return 'masquerade fully-random'
    case 'remember':
      return `update @${checkedName(statement.set)} { ${fieldText(family, statement.field)} }`
    case 'verdict':
      return verdictText(statement.verdict)
    case 'reject':
      return 'reject'
    case 'log':
      return logText(statement)
  }
}

function logText({ group, prefix }: Extract<Statement, { kind: 'log' }>): string {
  return prefix === undefined
    ? `log group ${group}`
    : `log prefix "${safeComment(prefix)}" group ${group}`
}

/** An address and a port as a map holds them. */
export function targetText({ ip, port }: DnatTarget): string {
  return `${checkedAddress(ip)} . ${checkedPort(port)}`
}

function dnatText(
  family: NftFamily,
  { targets, by }: Extract<Statement, { kind: 'dnat' }>,
): string {
  const [only] = targets
  if (targets.length === 1 && only) {
    const ip = checkedAddress(only.ip)
    return `dnat to ${family === 'ip6' ? `[${ip}]` : ip}:${checkedPort(only.port)}`
  }
  const choices = targets.map(targetText)
  return `dnat ${family} to ${drawText(family, targets.length, by)} map { ${numbered(choices)} }`
}

function prefixesText(prefixes: readonly Prefix[]): string {
  const texts = prefixes.map(({ text }) => checkedAddress(text))
  return texts.length === 1 ? texts.join('') : `{ ${texts.join(', ')} }`
}

function fieldsText(family: NftFamily, fields: readonly Field[]): string {
  return fields.map((field) => fieldText(family, field)).join(' . ')
}

function fieldText(family: NftFamily, field: Field): string {
  switch (field) {
    case 'saddr':
    case 'daddr':
      return `${family} ${field}`
    case 'l4proto':
      return 'meta l4proto'
    case 'dport':
      return 'th dport'
  }
}

function drawText(family: NftFamily, choices: number, by: Draw = 'chance'): string {
  switch (by) {
    case 'chance':
      return `numgen random mod ${choices}`
    case 'turn':
      return `numgen inc mod ${choices}`
    case 'source':
      return `jhash ${family} saddr mod ${choices} seed ${hex(sourceSeed)}`
  }
}

const numbered = (texts: readonly string[]) =>
  texts.map((text, index) => `${index} : ${text}`).join(', ')

const hex = (bits: number) => `0x${bits.toString(16).padStart(8, '0')}`
