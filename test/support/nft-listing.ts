/**
 * What `nft list ruleset` printed, with everything put in order that the kernel orders as it
 * likes: blocks by name, elements by text. Rules keep their order. Two equal rulesets give equal
 * texts, byte for byte.
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
 * The listing as it is but for the order of elements: that of a hash with a seed of the kernel's,
 * another one for each set. nft breaks the lines of long lists; so elements stand in one.
 */
export function withElementsSorted(listing: string): string {
  return listing.replace(
    /elements = \{ ([^}]*) \}/g,
    (_, elements: string) => `elements = { ${elements.split(/,\s+/).sort().join(', ')} }`,
  )
}
