import { KernelError, messageOf } from '../../errors.js'
import { familyOf, type IpFamily } from '../../state/ip.js'
import type { AddressFailure, LinkAddresses } from '../link-addresses.js'
import type { AddressJournal, JournalEntry } from './address-journal.js'
import { createSocket } from 'node:dgram'
import { once } from 'node:events'

/** An address that Windows shows. */
export interface SeenAddress {
  readonly ip: string
  /** Whether it is a single address (/32, /128). */
  readonly isSingle: boolean
  /**
   * Whether the node's own connections may take it as their source, which ours never are.
   * Undefined where the way of reading does not tell.
   */
  readonly isSource?: boolean
}

/** One way to change the addresses of one interface of Windows. */
export interface AddressWriter {
  /** For messages: `iphlpapi`, `netsh`. */
  readonly name: string
  /** The addresses of the interface. */
  read(family: IpFamily): Promise<readonly SeenAddress[]>
  /**
   * Throws a KernelError, of kind `exists` for an existing address. Without an error the address
   * may still be missing.
   */
  add(family: IpFamily, ip: string): Promise<void>
  /** Throws a KernelError, of kind `not-found` for a missing address. */
  remove(family: IpFamily, ip: string): Promise<void>
}

interface WindowsAddressesDeps {
  /** The name of the interface that gets addresses. */
  readonly link: string
  /**
   * Opens the way to change addresses of an interface; undefined when there is none of that name.
   */
  readonly openWriter: (link: string) => AddressWriter | undefined
  readonly journal: Pick<AddressJournal, 'read' | 'write'>
  /** Whether a socket can listen on an address: the proof that this machine has it. */
  readonly canBind: (ip: string) => Promise<boolean>
  readonly sleep: (ms: number) => Promise<void>
}

/** Windows looks for other machines with an address before sockets can use it. */
const patience = { everyMs: 100, tries: 100 } as const

/**
 * Addresses of an interface of Windows. The report of a writer is not trusted: the addresses are
 * read back, and a socket must be able to use them. The journal tells ours from others.
 */
export class WindowsAddresses implements LinkAddresses {
  readonly whenDenied = 'run as a member of Administrators, or as a service of LocalSystem'
  readonly #deps: WindowsAddressesDeps
  readonly #writers = new Map<string, AddressWriter>()

  constructor(deps: WindowsAddressesDeps) {
    this.#deps = deps
  }

  async ours(family: IpFamily): Promise<readonly string[]> {
    return (await this.#entries(family)).map(({ ip }) => ip)
  }

  async foreign(family: IpFamily, ips: readonly string[]): Promise<ReadonlySet<string>> {
    const ours = new Set(await this.ours(family))
    const foreign = new Set<string>()
    for (const ip of ips) {
      if (!ours.has(ip) && (await this.#deps.canBind(ip))) foreign.add(ip)
    }
    return foreign
  }

  async add(family: IpFamily, ips: readonly string[]): Promise<readonly AddressFailure[]> {
    const { link, journal } = this.#deps
    if (ips.length === 0) return []
    const writer = this.#writerOf(link)
    if (!writer) {
      const advice = 'name an interface of this node with --windows-interface'
      throw new KernelError('not-found', `there is no interface ${JSON.stringify(link)}; ${advice}`)
    }
    const before = await this.#single(link, family)
    const missing = ips.filter((ip) => !before.has(ip))
    if (missing.length > 0) {
      const added = new Set(missing)
      const others = journal.read().filter((entry) => entry.link !== link || !added.has(entry.ip))
      // The journal comes first: an address that it does not have would never be removed.
      journal.write([...others, ...missing.map((ip) => ({ ip, link }))])
    }
    const failed = new Map<string, KernelError>()
    for (const ip of missing) {
      const error = await attempt(() => writer.add(family, ip), 'exists')
      if (error) failed.set(ip, error)
    }
    await this.#readBack(writer, family, { ips, failed })
    // An address that is there despite its error is still ours.
    const after = await this.#single(link, family)
    this.#forget((entry) => failed.has(entry.ip) && entry.link === link && !after.has(entry.ip))
    return [...failed].map(([ip, error]) => ({ ip, error }))
  }

  async remove(family: IpFamily, ips: readonly string[]): Promise<readonly AddressFailure[]> {
    const failed = new Map<string, KernelError>()
    const asked = new Set(ips)
    const unwanted = (await this.#entries(family)).filter(({ ip }) => asked.has(ip))
    for (const { ip, link } of unwanted) {
      const writer = this.#writerOf(link)
      const error = await attempt(() => writer?.remove(family, ip), 'not-found')
      if (error) failed.set(ip, error)
    }
    for (const { ip, link } of await this.#entries(family)) {
      if (!asked.has(ip) || failed.has(ip)) continue
      const { name = '' } = this.#writerOf(link) ?? {}
      const reason = `remove address ${ip}: ${name} reported success, but ${link} still has it`
      failed.set(ip, new KernelError('failed', reason))
    }
    this.#forget(({ ip }) => asked.has(ip) && !failed.has(ip))
    return [...failed].map(([ip, error]) => ({ ip, error }))
  }

  /** Removes nothing, because the interface belongs to the node. */
  tidy(): Promise<void> {
    return Promise.resolve()
  }

  close(): void {
    this.#writers.clear()
  }

  /**
   * Entries of the journal that are still true: the interface has this address, as this program
   * adds addresses. The journal outlives a restart of Windows, the addresses do not; one that
   * somebody else has added since is not ours.
   */
  async #entries(family: IpFamily): Promise<readonly JournalEntry[]> {
    const entries = this.#deps.journal.read().filter(({ ip }) => familyOf(ip) === family)
    const seen = new Map<string, ReadonlySet<string>>()
    for (const { link } of entries) {
      if (!seen.has(link)) seen.set(link, await this.#single(link, family, asWeAdd))
    }
    return entries.filter(({ ip, link }) => seen.get(link)?.has(ip) === true)
  }

  async #single(
    link: string,
    family: IpFamily,
    isWanted: (address: SeenAddress) => boolean = () => true,
  ): Promise<ReadonlySet<string>> {
    const seen = (await this.#writerOf(link)?.read(family)) ?? []
    const wanted = seen.filter((address) => address.isSingle && isWanted(address))
    return new Set(wanted.map(({ ip }) => ip))
  }

  async #readBack(
    writer: AddressWriter,
    family: IpFamily,
    { ips, failed }: { ips: readonly string[]; failed: Map<string, KernelError> },
  ): Promise<void> {
    const { link, canBind, sleep } = this.#deps
    const present = await this.#single(link, family)
    const waiting: string[] = []
    for (const ip of ips) {
      if (failed.has(ip)) continue
      if (present.has(ip)) waiting.push(ip)
      else {
        const reason = `add address ${ip}: ${writer.name} reported success, but ${link} does not have it`
        failed.set(ip, new KernelError('failed', reason))
      }
    }
    let tries = 0
    for (const ip of waiting) {
      while (!(await canBind(ip))) {
        if (++tries > patience.tries) {
          const reason = `add address ${ip}: ${link} has it, but no socket can use it: does another machine have it?`
          failed.set(ip, new KernelError('failed', reason))
          break
        }
        await sleep(patience.everyMs)
      }
    }
  }

  #forget(isGone: (entry: JournalEntry) => boolean): void {
    const entries = this.#deps.journal.read()
    const left = entries.filter((entry) => !isGone(entry))
    if (left.length < entries.length) this.#deps.journal.write(left)
  }

  #writerOf(link: string): AddressWriter | undefined {
    const writer = this.#writers.get(link) ?? this.#deps.openWriter(link)
    // An interface that is missing may appear later.
    if (writer) this.#writers.set(link, writer)
    return writer
  }
}

const asWeAdd = ({ isSource }: SeenAddress) => isSource !== true

/** The error of a change; undefined when it was made, or was not needed. */
async function attempt(
  change: () => Promise<void> | undefined,
  tolerated: 'exists' | 'not-found',
): Promise<KernelError | undefined> {
  try {
    await change()
    return undefined
  } catch (error) {
    if (!(error instanceof KernelError)) return new KernelError('failed', messageOf(error))
    return error.kind === tolerated ? undefined : error
  }
}

/** Whether a socket can listen on this address, which only an address of this machine allows. */
export async function canBind(ip: string): Promise<boolean> {
  const socket = createSocket({
    type: ip.includes(':') ? 'udp6' : 'udp4',
    lookup: (host, _options, done) => done(null, host, host.includes(':') ? 6 : 4),
  })
  try {
    const listening = once(socket, 'listening')
    socket.bind({ address: ip, port: 0, exclusive: true })
    await listening
    return true
  } catch {
    return false
  } finally {
    socket.close()
  }
}
