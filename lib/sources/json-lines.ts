import { SourceError } from '../errors.js'

/** No API object is as long as this. */
const longestLine = 32 * 1024 * 1024

const newline = 0x0a

/** A line that is no JSON, or has no end. Its event is lost. */
export class UnreadableLine extends SourceError {}

/**
 * The JSON values of a stream with one value per line. An unfinished last line is left out: the
 * connection broke, and the next watch sends the event again.
 */
export async function* readJsonLines(chunks: AsyncIterable<Buffer>): AsyncIterable<unknown> {
  let pending: Buffer[] = []
  let length = 0
  for await (const chunk of chunks) {
    let start = 0
    for (let end = chunk.indexOf(newline); end >= 0; end = chunk.indexOf(newline, start)) {
      pending.push(chunk.subarray(start, end))
      const line = Buffer.concat(pending).toString('utf8')
      pending = []
      length = 0
      start = end + 1
      if (line.trim() !== '') yield parseLine(line)
    }
    if (start === chunk.length) continue
    pending.push(chunk.subarray(start))
    length += chunk.length - start
    if (length > longestLine) {
      throw new UnreadableLine(`read the event stream: a line is longer than ${longestLine} bytes`)
    }
  }
}

function parseLine(line: string): unknown {
  try {
    return JSON.parse(line) as unknown
  } catch (cause) {
    throw new UnreadableLine('read the event stream: a line is not JSON', { cause })
  }
}
