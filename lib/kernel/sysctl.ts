import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { ifPossible, messageOf } from '../errors.js'

/** The result for one kernel setting. */
export interface SysctlOutcome {
  /** `net/netfilter/nf_conntrack_max` */
  readonly name: string
  readonly wanted: string
  /** The value before; undefined when it could not be read. */
  readonly before: string | undefined
  readonly result: 'unchanged' | 'written' | 'kept-larger' | 'missing' | 'failed'
  /** A text for people; empty when all is well. */
  readonly reason: string
}

export interface SysctlWish {
  readonly name: string
  readonly value: number
  /** Leaves a larger value alone: somebody wanted it, and it does no harm. */
  readonly raiseOnly?: boolean
}

/**
 * Kernel settings, read and written as files. Nothing here throws: containers, LXC and rootless
 * nodes forbid some of these, and proxying works without them, so every outcome is a value.
 */
export class Sysctls {
  readonly #root: string

  /** `root` is where `proc` and `sys` are found; tests give a folder. */
  constructor(root = '/') {
    this.#root = root
  }

  ensure(wish: SysctlWish): SysctlOutcome {
    return this.ensureFile(join('proc/sys', wish.name), wish)
  }

  /** The content of a file, without the line end. The path is relative to the root. */
  readFile(path: string): string | undefined {
    return ifPossible(() => readFileSync(join(this.#root, path), 'utf8').trim())
  }

  /** The names in a folder; none where it cannot be read. */
  list(path: string): readonly string[] {
    return ifPossible(() => readdirSync(join(this.#root, path))) ?? []
  }

  /** Like {@link ensure} for any file, such as a module's parameter under sys. */
  ensureFile(path: string, { name, value, raiseOnly = false }: SysctlWish): SysctlOutcome {
    const wanted = String(value)
    const before = this.readFile(path)
    const outcome = (result: SysctlOutcome['result'], reason = ''): SysctlOutcome => ({
      name,
      wanted,
      before,
      result,
      reason,
    })
    if (before === undefined) return outcome('missing', `this kernel has no ${name}`)
    if (before === wanted) return outcome('unchanged')
    if (raiseOnly && Number(before) > value) return outcome('kept-larger')
    try {
      writeFileSync(join(this.#root, path), wanted)
      return outcome('written')
    } catch (error) {
      return outcome(
        'failed',
        `set ${name} from ${before} to ${wanted}: ${messageOf(error)}; set it on the host, or switch off in the configuration what sets it`,
      )
    }
  }
}
