import { KernelError } from '../../errors.js'
import { programFromId } from '../../kernel/bpf/attached.js'
import {
  createLink,
  detachLink,
  forEachCgroupLink,
  linkInfo,
  updateLink,
  type LinkInfo,
} from '../../kernel/bpf/link.js'
import { programInfo, type Hook } from '../../kernel/bpf/program.js'
import type { SystemCalls } from '../../kernel/bpf/system-calls.js'
import { openCgroup, type OpenCgroup } from '../../kernel/cgroup.js'
import { programPrefix } from './names.js'
import { isOfOtherNetwork, NetworkNote } from './network-note.js'
import type { Pins } from './pins.js'

interface Attached {
  readonly link: number
  readonly programId: number
}

interface AttachmentDeps {
  readonly calls: SystemCalls
  readonly cgroup: Pick<OpenCgroup, 'id' | 'path'>
  /** The number of this network namespace. */
  readonly network: bigint
  /** Undefined: the kernel detaches the programs when this process ends. */
  readonly pins: Pins | undefined
}

/** Attaches the programs to the hooks of the cgroup. */
export class Attachment {
  readonly #deps: AttachmentDeps
  readonly #note: NetworkNote
  readonly #attached = new Map<Hook, Attached>()
  #cgroupId: bigint

  constructor(deps: AttachmentDeps) {
    this.#deps = deps
    this.#cgroupId = deps.cgroup.id
    this.#note = new NetworkNote(deps.calls, deps.network)
  }

  /** Attaches a loaded program. If our link is at the hook, its program is replaced in one step. */
  put(hook: Hook, program: number): void {
    const { calls } = this.#deps
    this.#note.addTo(program)
    // The folder may have been removed and made anew. The kernel detaches its programs some time later.
    const cgroup = openCgroup(this.#deps.cgroup.path)
    try {
      this.#cgroupId = cgroup.id
      const link = this.#replace(hook, program) ?? this.#create(hook, program, cgroup.fd)
      this.#attached.set(hook, { link, programId: programInfo(calls, program).id })
    } finally {
      cgroup.close()
    }
  }

  /**
   * Detaches programs of this mode that this process did not attach. A process that was killed, or
   * another release, left them. They would translate by tables that nobody keeps up to date.
   * Programs of another network namespace stay: a proxy there may keep them up to date.
   */
  detachOrphans(): { readonly detached: number; readonly ofOthers: number } {
    const { calls, pins, network } = this.#deps
    pins?.dropOtherVersions()
    const own = new Set([...this.#attached.values()].map(({ link }) => linkInfo(calls, link).id))
    let [detached, ofOthers] = [0, 0]
    forEachCgroupLink(calls, this.#cgroupId, (link, { id, programId }) => {
      const name = programFromId(calls, programId)?.name ?? ''
      if (own.has(id) || !name.startsWith(programPrefix)) return
      if (isOfOtherNetwork(calls, programId, network)) ofOthers++
      else {
        detachQuietly(calls, link)
        detached++
      }
    })
    return { detached, ofOthers }
  }

  /** Whether a program of this process, or of the process before, is at the hook. */
  has(hook: Hook): boolean {
    const { calls, pins } = this.#deps
    const own = this.#attached.get(hook)?.link
    const link = own ?? pins?.find(linkName(hook))
    if (link === undefined) return false
    try {
      return this.#isHere(linkInfo(calls, link))
    } finally {
      if (own === undefined) calls.close(link)
    }
  }

  /** Says which program somebody else detached or replaced; undefined: none. */
  damage(): string | undefined {
    for (const [hook, { link, programId }] of this.#attached) {
      const info = linkInfo(this.#deps.calls, link)
      if (!this.#isHere(info)) return `somebody detached the eBPF program at ${hook}`
      if (info.programId !== programId) return `somebody replaced the eBPF program at ${hook}`
    }
    return undefined
  }

  /** Pinned programs stay attached. The kernel detaches the others. */
  close(): void {
    for (const { link } of this.#attached.values()) this.#deps.calls.close(link)
    this.#attached.clear()
    this.#note.close()
  }

  #replace(hook: Hook, program: number): number | undefined {
    const { calls, pins } = this.#deps
    const link = this.#attached.get(hook)?.link ?? pins?.find(linkName(hook))
    if (link === undefined) return undefined
    if (this.#isHere(linkInfo(calls, link))) {
      updateLink(calls, link, program)
      pins?.hold(linkName(hook), link)
      return link
    }
    this.#attached.delete(hook)
    pins?.letGo(linkName(hook))
    detachQuietly(calls, link)
    calls.close(link)
    return undefined
  }

  #create(hook: Hook, program: number, cgroup: number): number {
    const { calls, pins } = this.#deps
    const link = createLink(calls, { hook, program, cgroup })
    pins?.keep(linkName(hook), link)
    return link
  }

  #isHere({ cgroupId }: LinkInfo): boolean {
    return cgroupId === this.#cgroupId
  }
}

export const linkName = (hook: Hook) => `link-${hook}`

/** Ignores refusals of the kernel: a link that lost its cgroup is detached already. */
export function detachQuietly(calls: SystemCalls, link: number): void {
  try {
    detachLink(calls, link)
  } catch (error) {
    if (!(error instanceof KernelError)) throw error
  }
}
