import { messageOf } from '../../lib/errors.js'

/** Parses the command line of a runner. `--help` prints the usage and ends, a wrong word as well. */
export function withUsage<T>(usage: string, parse: () => T): T {
  const words = process.argv.slice(2)
  if (words.includes('--help') || words.includes('-h')) {
    console.log(`usage: ${usage}`)
    process.exit(0)
  }
  try {
    return parse()
  } catch (error) {
    console.error(`${messageOf(error)}\nusage: ${usage}`)
    process.exit(2)
  }
}
