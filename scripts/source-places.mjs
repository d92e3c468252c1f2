import { existsSync, readFileSync } from 'node:fs'
import { SourceMap } from 'node:module'
import { dirname, join, relative, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'

const maps = new Map()

/**
 * Adds the place in the source to each place in a compiled file, `build/….js:4:7`. Node does this
 * itself with --enable-source-maps, but then every process reads all maps at its start.
 */
export function withSourcePlaces(text) {
  return text.replaceAll(
    /(?:file:\/\/)?([\w./-]*\bbuild\/[\w./-]+\.js):(\d+):(\d+)/g,
    (found, ...of) => {
      const [file, line, column] = of
      const place = placeOf(resolve(file), Number(line), Number(column))
      return place === undefined ? found : `${found} (${place})`
    },
  )
}

function placeOf(file, line, column) {
  if (!maps.has(file)) maps.set(file, mapOf(file))
  // Lines and columns count from 1 in a text, and from 0 in a map.
  const { originalSource, originalLine, originalColumn } =
    maps.get(file)?.findEntry(line - 1, column - 1) ?? {}
  if (originalSource === undefined) return undefined
  // Versions of Node differ: a source is relative to the file, or a URL.
  const source = originalSource.startsWith('file:')
    ? fileURLToPath(originalSource)
    : join(dirname(file), originalSource)
  return `${relative('.', source)}:${originalLine + 1}:${originalColumn + 1}`
}

const mapOf = (file) =>
  existsSync(`${file}.map`)
    ? new SourceMap(JSON.parse(readFileSync(`${file}.map`, 'utf8')))
    : undefined
