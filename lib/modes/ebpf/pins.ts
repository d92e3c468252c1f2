import {
  accessSync,
  constants,
  existsSync,
  mkdirSync,
  readdirSync,
  rmSync,
  statfsSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import { messageOf } from '../../errors.js'
import type { SystemCalls } from '../../kernel/bpf/system-calls.js'
import { openPinned, pin } from '../../kernel/bpf/commands.js'
import type { Log } from '../mode.js'
import { pinFolders } from './names.js'

const bpffsMagic = 0xcafe4a11

/**
 * Gives maps and links a path in a folder of a bpffs, so that they outlive this process. The folder
 * is named after the version of the layout, so that no release opens a map that it cannot read.
 */
export class Pins {
  readonly #calls: SystemCalls
  readonly #bpffs: string
  readonly #folder: string
  readonly #log: Pick<Log, 'warn'>

  private constructor(calls: SystemCalls, bpffs: string, log: Pick<Log, 'warn'>) {
    this.#calls = calls
    this.#bpffs = bpffs
    this.#folder = join(bpffs, pinFolders.own, pinFolders.version)
    this.#log = log
  }

  /** Gives the reason in `missing` if nothing can be pinned. */
  static open(
    calls: SystemCalls,
    bpffs: string,
    log: Pick<Log, 'warn'>,
  ): Pins | { readonly missing: string } {
    const missing = whyNot(bpffs)
    if (missing !== undefined) return { missing }
    const pins = new Pins(calls, bpffs, log)
    try {
      pins.#makeFolder()
    } catch (error) {
      return { missing: messageOf(error) }
    }
    return pins
  }

  /** Removes what another release pinned. This detaches its programs. */
  dropOtherVersions(): void {
    const all = dirname(this.#folder)
    for (const version of readdirSync(all)) {
      if (version !== pinFolders.version) rmSync(join(all, version), { recursive: true })
    }
  }

  find(name: string): number | undefined {
    return openPinned(this.#calls, join(this.#folder, name))
  }

  /**
   * Pins a map or link. This fails if others have removed the folder, unmounted the bpffs, or made
   * it read-only. Then the map or link ends with this process.
   */
  keep(name: string, fd: number): void {
    const missing = whyNot(this.#bpffs) ?? this.#keep(name, fd)
    if (missing === undefined) return
    this.#log.warn(
      { name, reason: missing },
      'an eBPF map or program is not kept for the next start',
    )
  }

  #keep(name: string, fd: number): string | undefined {
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

  #makeFolder(): void {
    mkdirSync(this.#folder, { recursive: true, mode: 0o700 })
  }
}

export function hasPins(bpffs: string): boolean {
  return existsSync(join(bpffs, pinFolders.own))
}

/** Removes the pins of all versions. A map or link that nothing else holds ends with its path. */
export function dropAllPins(bpffs: string): void {
  rmSync(join(bpffs, pinFolders.own), { recursive: true, force: true })
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
