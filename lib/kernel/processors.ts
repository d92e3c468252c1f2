/** The number of processors in a list of the kernel, such as `0-3,8`. */
export function countProcessors(list: string): number {
  const ranges = list.trim().split(',')
  return ranges.reduce((sum, range) => {
    const [first = 0, last = first] = range.split('-').map(Number)
    return sum + last - first + 1
  }, 0)
}
