import {
  accessSync,
  constants,
  existsSync,
  readdirSync,
  renameSync,
  rmdirSync,
  rmSync,
  statfsSync,
} from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { ifPossible, messageOf, unless } from '../../errors.js'
import { networkCookie } from '../../kernel/network-namespaces.js'
import { makeOwnFolder } from '../../kernel/own-folder.js'
import type { SystemCalls } from '../../kernel/bpf/system-calls.js'
import { isSame, openPinned, pin } from '../../kernel/bpf/commands.js'
import type { Log } from '../mode.js'
import { pinFolders } from './names.js'

const notKept = 'an eBPF map or program is not kept for the next start'

const bpffsMagic = 0xcafe4a11

/**
 * Gives maps and links a path in a folder of a bpffs, so that they outlive this process. The folder
 * is named after the network namespace, because a bpffs may be seen from several, and after the
 * version of the layout, so that no release opens a map that it cannot read.
 */
export class Pins {
  readonly #calls: SystemCalls
  readonly #bpffs: string
  readonly #folder: string
  readonly #log: Pick<Log, 'warn'>
  /** What is pinned, by name. Its owner closes it only after it let it go, or has pinned another. */
  readonly #pinned = new Map<string, number>()
  #isBroken = false

  private constructor(calls: SystemCalls, bpffs: string, log: Pick<Log, 'warn'>) {
    this.#calls = calls
    this.#bpffs = bpffs
    this.#folder = join(networkFolder(bpffs), pinFolders.version)
    this.#log = log
  }

  /** Undefined if nothing can be pinned. */
  static open(calls: SystemCalls, bpffs: string, log: Pick<Log, 'warn'>): Pins | undefined {
    if (whyNot(bpffs) !== undefined) return undefined
    const pins = new Pins(calls, bpffs, log)
    return ifPossible(() => {
      pins.#takeOver()
      pins.#makeFolder()
      return pins
    })
  }

  /** Removes what another release pinned. This detaches its programs. */
  dropOtherVersions(): void {
    for (const folder of pinnedHere(this.#bpffs)) {
      if (folder !== this.#folder) rmSync(folder, { recursive: true, force: true })
    }
  }

  find(name: string): number | undefined {
    return openPinned(this.#calls, join(this.#folder, name))
  }

  /** What was found is used, and stays pinned. */
  hold(name: string, fd: number): void {
    this.#pinned.set(name, fd)
  }

  /** Its owner closes it, perhaps without another one of that name. The path stays. */
  letGo(name: string): void {
    this.#pinned.delete(name)
  }

  /**
   * Pins again what others have unpinned, as when they remove the folder or unmount the bpffs, and
   * what could not take the place of an older pin while the bpffs was read-only.
   */
  restore(): void {
    let reason = whyNot(this.#bpffs)
    const all = reason === undefined ? [...this.#pinned] : []
    const gone = all.filter(([name, fd]) => !this.#isPinned(name, fd))
    if (gone.length > 0 && !this.#isBroken) {
      this.#log.warn(
        { folder: this.#folder, count: gone.length },
        'eBPF pins were removed or replaced',
      )
    }
    for (const [name, fd] of gone) reason ??= this.#pin(name, fd)
    if (reason !== undefined && !this.#isBroken) this.#log.warn({ reason }, notKept)
    this.#isBroken = reason !== undefined
  }

  /**
   * Pins a map or link. This fails if others have removed the folder, unmounted the bpffs, or made
   * it read-only. Then the map or link ends with this process.
   */
  keep(name: string, fd: number): void {
    this.hold(name, fd)
    const reason = this.#pin(name, fd)
    this.#isBroken = reason !== undefined
    if (reason !== undefined) this.#log.warn({ name, reason }, notKept)
  }

  #isPinned(name: string, fd: number): boolean {
    const found = unless(['denied'], () => this.find(name))
    if (found === undefined) return false
    try {
      return isSame(this.#calls, found, fd)
    } finally {
      this.#calls.close(found)
    }
  }

  #pin(name: string, fd: number): string | undefined {
    const missing = whyNot(this.#bpffs)
    if (missing !== undefined) return missing
    const path = join(this.#folder, name)
    try {
      this.#makeFolder()
      rmSync(path, { force: true })
      pin(this.#calls, fd, path)
      return undefined
    } catch (error) {
      return messageOf(error)
    }
  }

  /** An upgrade continues with what a release pinned that had no folders of network namespaces. */
  #takeOver(): void {
    const old = join(this.#bpffs, pinFolders.own, pinFolders.version)
    if (existsSync(this.#folder) || !existsSync(old)) return
    makeOwnFolder(dirname(this.#folder))
    renameSync(old, this.#folder)
  }

  #makeFolder(): void {
    makeOwnFolder(this.#folder)
  }
}

const networkFolder = (bpffs: string) =>
  join(bpffs, pinFolders.own, `${pinFolders.network}${networkCookie()}`)

const isOfNetwork = (folder: string) => basename(folder).startsWith(pinFolders.network)

/**
 * The folders with pins of this network namespace, one for each version. Those of older releases
 * are among them: they do not say to which network namespace they belong.
 */
export function pinnedHere(bpffs: string): readonly string[] {
  const all = entriesOf(join(bpffs, pinFolders.own))
  if (all.length === 0) return []
  return [...entriesOf(networkFolder(bpffs)), ...all.filter((folder) => !isOfNetwork(folder))]
}

/** The folders of other network namespaces. */
export function pinnedElsewhere(bpffs: string): readonly string[] {
  const all = entriesOf(join(bpffs, pinFolders.own)).filter(isOfNetwork)
  return all.length === 0 ? [] : all.filter((folder) => folder !== networkFolder(bpffs))
}

/** Removes folders with pins. A map or link that nothing else holds ends with its path. */
export function dropPins(bpffs: string, folders: readonly string[]): void {
  for (const folder of folders) rmSync(folder, { recursive: true, force: true })
  for (const folder of [networkFolder(bpffs), join(bpffs, pinFolders.own)]) {
    // Other network namespaces may have pins below it, or another process has removed it.
    ifPossible(() => rmdirSync(folder))
  }
}

function entriesOf(folder: string): readonly string[] {
  try {
    return readdirSync(folder).map((name) => join(folder, name))
  } catch (error) {
    if (existsSync(folder)) throw error
    return []
  }
}

export function whyNot(bpffs: string): string | undefined {
  if (bpffs === '') return 'switched off'
  if (!existsSync(bpffs)) return `there is no folder ${bpffs}`
  try {
    if (statfsSync(bpffs).type !== bpffsMagic) return `no bpffs is mounted at ${bpffs}`
    // In a read-only bpffs old pins could be opened, but not replaced.
    accessSync(bpffs, constants.W_OK)
    return undefined
  } catch (error) {
    return messageOf(error)
  }
}
