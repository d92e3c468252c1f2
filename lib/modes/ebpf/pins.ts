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
import { openPinned, pin } from '../../kernel/bpf/pin.js'
import { pinFolders } from './names.js'

const bpffsMagic = 0xcafe4a11

/**
 * Where maps and links get a path, so that they outlive this process: a folder of a bpffs, named
 * after the version of the layout, so that another release does not open what it cannot read.
 */
export class Pins {
  readonly #calls: SystemCalls
  readonly #folder: string

  private constructor(calls: SystemCalls, folder: string) {
    this.#calls = calls
    this.#folder = folder
  }

  /** Undefined, with the reason, where nothing can be pinned. */
  static open(calls: SystemCalls, bpffs: string): Pins | { readonly missing: string } {
    const missing = whyNot(bpffs)
    if (missing !== undefined) return { missing }
    const folder = join(bpffs, pinFolders.own, pinFolders.version)
    try {
      mkdirSync(folder, { recursive: true, mode: 0o700 })
    } catch (error) {
      return { missing: messageOf(error) }
    }
    return new Pins(calls, folder)
  }

  /** What another release left; its programs end with it. */
  dropOtherVersions(): void {
    const all = dirname(this.#folder)
    for (const version of readdirSync(all)) {
      if (version !== pinFolders.version) rmSync(join(all, version), { recursive: true })
    }
  }

  find(name: string): number | undefined {
    return openPinned(this.#calls, join(this.#folder, name))
  }

  keep(name: string, fd: number): void {
    this.drop(name)
    pin(this.#calls, fd, join(this.#folder, name))
  }

  drop(name: string): void {
    rmSync(join(this.#folder, name), { force: true })
  }
}

export function hasPins(bpffs: string): boolean {
  return existsSync(join(bpffs, pinFolders.own))
}

/** Everything of any version; what is held by nothing else ends with its path. */
export function dropAllPins(bpffs: string): void {
  rmSync(join(bpffs, pinFolders.own), { recursive: true, force: true })
}

export function whyNot(bpffs: string): string | undefined {
  if (bpffs === '') return 'switched off'
  if (!existsSync(bpffs)) return `there is no folder ${bpffs}`
  try {
    if (statfsSync(bpffs).type !== bpffsMagic) return `no bpffs is mounted at ${bpffs}`
    // What was pinned before it became read-only could be opened, and nothing put in its place.
    accessSync(bpffs, constants.W_OK)
    return undefined
  } catch (error) {
    return messageOf(error)
  }
}
