import { readFileSync } from 'node:fs'

/** Processors that this machine may ever have: a map has a value for each, also while it is off. */
export function possibleProcessors(): number {
  return countOf(readFileSync('/sys/devices/system/cpu/possible', 'utf8'))
}

/** Of a list such as `0-3,8`. */
export function countOf(list: string): number {
  const ranges = list.trim().split(',')
  return ranges.reduce((sum, range) => {
    const [first = 0, last = first] = range.split('-').map(Number)
    return sum + last - first + 1
  }, 0)
}
