/**
 * The output of `nft list ruleset`, sorted where the kernel's order says nothing: blocks by name,
 * elements by text. Rules keep their order. Two equal rulesets give equal texts, byte for byte.
 */
export function canonicalListing(listing: string): string {
  const blocks = new Map<string, string>()
  let table = ''
  let name = ''
  let lines: string[] = []
  for (const line of listing.split('\n')) {
    if (/^table /.test(line)) table = line
    else if (/^\t(chain|set|map) /.test(line)) {
      name = `${table} ${line.trim()}`
      lines = []
    } else if (line === '\t}') blocks.set(name, sortElements(lines))
    else if (name !== '' && line.trim() !== '') lines.push(line.trim())
  }
  return [...blocks]
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([title, body]) => `${title}\n${body}`)
    .join('\n')
}

function sortElements(lines: readonly string[]): string {
  const start = lines.findIndex((line) => line.startsWith('elements = {'))
  if (start < 0) return lines.join('\n')
  const elements = lines
    .slice(start)
    .join(' ')
    .replace(/^elements = \{ /, '')
    .replace(/ \}$/, '')
    .split(', ')
  return [...lines.slice(0, start), ...elements.sort()].join('\n')
}

/**
 * The listing with sorted elements, each list in one line. The kernel's own order comes from a hash
 * with another seed for each set, and nft breaks long lists into several lines.
 */
export function withElementsSorted(listing: string): string {
  return listing.replace(
    /elements = \{ ([^}]*) \}/g,
    (_, elements: string) => `elements = { ${elements.split(/,\s+/).sort().join(', ')} }`,
  )
}
