import { printable } from '../../state/names.js'
import type { ServiceNumbers } from './rows.js'

/** One look at all Services. */
export interface Look {
  /** Milliseconds of a clock that nobody can set. */
  readonly at: number
  readonly rows: readonly ServiceNumbers[]
}

export interface TopRow extends ServiceNumbers {
  /**
   * Per second since the previous look; undefined at the first look, or where nothing counts them.
   */
  readonly newPerSecond: number | undefined
  readonly bytesInPerSecond: number | undefined
  readonly bytesOutPerSecond: number | undefined
}

/** The rows with their rates, the busiest first. */
export function withRates(now: Look, before: Look | undefined): readonly TopRow[] {
  const seconds = before ? (now.at - before.at) / 1000 : 0
  const old = new Map(before?.rows.map((row) => [`${row.service}/${row.protocol}`, row]))
  const rate = (value: number | undefined, previous: number | undefined) =>
    value === undefined || previous === undefined || seconds <= 0
      ? undefined
      : Math.max(0, value - previous) / seconds
  return now.rows
    .map((row): TopRow => {
      const last = old.get(`${row.service}/${row.protocol}`)
      return {
        ...row,
        newPerSecond: rate(row.total, last?.total),
        bytesInPerSecond: rate(row.bytesIn, last?.bytesIn),
        bytesOutPerSecond: rate(row.bytesOut, last?.bytesOut),
      }
    })
    .sort(
      (a, b) =>
        (b.newPerSecond ?? 0) - (a.newPerSecond ?? 0) ||
        b.open - a.open ||
        (b.total ?? 0) - (a.total ?? 0) ||
        (a.service < b.service ? -1 : 1),
    )
}

interface TableOptions {
  readonly title: string
  readonly columns: number
  /** The most lines to print; undefined: no limit. */
  readonly lines: number | undefined
  /** Rates make sense once there are two looks. */
  readonly hasRates: boolean
  /** Shows whole names, and numbers to the last digit. */
  readonly isWide?: boolean
}

/** The columns behind the name. They leave 31 of 80 characters for the name. */
const heads = ['OPEN', 'TOTAL', 'NEW/s', 'IN', 'OUT', 'ERRORS'] as const
const usualWidth = 8
/** On a narrow terminal there is one space before the longest number, and the last column stays. */
const narrowWidth = 7
const leastName = 16
/** Room for the largest number that is exact. */
const wideWidth = String(Number.MAX_SAFE_INTEGER).length + 1

export function topText(rows: readonly TopRow[], options: TableOptions): string {
  const { title, lines, hasRates, isWide = false } = options
  const columns = isWide ? Infinity : options.columns
  const isNarrow = columns < leastName + heads.length * usualWidth + 1
  const width = isWide ? wideWidth : isNarrow ? narrowWidth : usualWidth
  const longest = rows.reduce((most, row) => Math.max(most, nameOf(row).length), 0)
  const nameWidth = Math.max(leastName, isWide ? longest : columns - heads.length * width - 1)
  const per = hasRates ? '/s' : ''
  const titles = heads.map((head) => (head === 'IN' || head === 'OUT' ? head + per : head))
  const head = 'SERVICE'.padEnd(nameWidth) + titles.map((text) => text.padStart(width)).join('')
  const titleLines = title.split('\n').flatMap((line) => wrapped(line, columns))
  const room = lines === undefined ? rows.length : Math.max(1, lines - titleLines.length - 1)
  // The last line of a full screen says what does not fit.
  const shown = rows.length <= room ? rows : rows.slice(0, room - 1)
  const rest = rows.length - shown.length
  const more = rest > 0 ? [`… and ${rest} more; a taller terminal shows them`] : []
  const body = shown.map((row) => {
    const cells = cellsOf(row, hasRates, isWide).map((cell) => cell.padStart(width))
    return cutInside(nameOf(row), nameWidth).padEnd(nameWidth) + cells.join('')
  })
  const all = [...titleLines, head, ...body, ...more]
  // On a full screen a line that wraps would push the first ones away.
  return (lines === undefined ? all : all.map((line) => cut(line, columns))).join('\n')
}

const nameOf = ({ service, protocol }: TopRow) =>
  printable(protocol === 'TCP' ? service : `${service}/${protocol}`)

function cellsOf(row: TopRow, hasRates: boolean, isWide: boolean): readonly string[] {
  const [number, size] = isWide ? [exact, exact] : [plain, bytes]
  return [
    number(row.open),
    number(row.total),
    row.newPerSecond === undefined ? '-' : row.newPerSecond.toFixed(row.newPerSecond < 10 ? 1 : 0),
    size(hasRates ? row.bytesInPerSecond : row.bytesIn),
    size(hasRates ? row.bytesOutPerSecond : row.bytesOut),
    number(row.errors),
  ]
}

const exact = (value: number | undefined) => (value === undefined ? '-' : value.toFixed(0))

function plain(value: number | undefined): string {
  if (value === undefined) return '-'
  return value < 1_000_000 ? String(value) : `${(value / 1_000_000).toFixed(1)}M`
}

const units = ['', 'K', 'M', 'G', 'T'] as const

export function bytes(value: number | undefined): string {
  if (value === undefined) return '-'
  let left = value
  let unit = 0
  while (left >= 1024 && unit < units.length - 1) {
    left /= 1024
    unit++
  }
  return `${unit === 0 || left >= 100 ? left.toFixed(0) : left.toFixed(1)}${units[unit] ?? ''}`
}

/** The advice in a title is of no use if its end is cut off. */
function wrapped(text: string, columns: number): readonly string[] {
  const lines: string[] = []
  for (const word of printable(text).split(' ')) {
    const longer = lines.length === 0 ? word : `${lines.at(-1)} ${word}`
    if (lines.length > 0 && longer.length <= columns) lines[lines.length - 1] = longer
    else lines.push(word)
  }
  return lines.map((line) => cut(line, columns))
}

/** A name keeps its namespace and its port: Services of one namespace often begin alike. */
function cutInside(name: string, columns: number): string {
  if (name.length <= columns) return name
  const end = Math.floor((columns - 1) / 2)
  return `${name.slice(0, columns - 1 - end)}…${name.slice(-end)}`
}

function cut(text: string, columns: number): string {
  const safe = printable(text)
  return safe.length <= columns ? safe : `${safe.slice(0, columns - 1)}…`
}
