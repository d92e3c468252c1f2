import { readFileSync, renameSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { ifPossible, KernelError, messageOf } from '../../errors.js'
import { parseIp } from '../../state/ip.js'
import { makeOwnFolder } from '../own-folder.js'

/** An address of ours, and the name of the interface that has it. */
export interface JournalEntry {
  readonly ip: string
  readonly link: string
}

/**
 * A file of the addresses that this program has put on interfaces. Windows cannot mark them. Each
 * is written here before it is added, so that it is known as ours after a crash.
 */
export class AddressJournal {
  readonly #file: string

  constructor(file: string) {
    this.#file = file
  }

  /** Empty without a file. Anything that is not an entry is left out. */
  read(): readonly JournalEntry[] {
    const entries = ifPossible((): unknown => JSON.parse(readFileSync(this.#file, 'utf8')))
    return Array.isArray(entries) ? entries.flatMap((entry) => entryOf(entry) ?? []) : []
  }

  /**
   * Throws a KernelError where the file cannot be written. The caller then must not add anything.
   */
  write(entries: readonly JournalEntry[]): void {
    const next = `${this.#file}.new`
    try {
      makeOwnFolder(dirname(this.#file))
      writeFileSync(next, JSON.stringify(entries), { mode: 0o600, flush: true })
      renameSync(next, this.#file)
    } catch (cause) {
      const reason = `write ${this.#file}, the list of our addresses: ${messageOf(cause)}`
      throw new KernelError('failed', reason, { cause })
    }
  }
}

function entryOf(value: unknown): JournalEntry | undefined {
  if (typeof value !== 'object' || value === null) return undefined
  const { ip, link } = value as Record<string, unknown>
  if (typeof ip !== 'string' || typeof link !== 'string') return undefined
  const address = parseIp(ip)
  return address && { ip: address.text, link }
}
