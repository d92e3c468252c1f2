import type { Pipe, Pipes } from '../../../../kernel/sockets/pipe.js'
import type { DescriptorBudget } from '../descriptors.js'

/** Both ends. */
const descriptorsPerPipe = 2
/** What one splice may move; the largest that ordinary users may have. */
export const pipeBytes = 1 << 20
/**
 * Slow readers keep their pipes full: 64 MiB of kernel memory a worker is enough for them. Who
 * comes too late has its bytes copied, and waits with one buffer of them.
 */
const maxOpen = 64
/** More would be kept for a burst that is over. */
const maxIdle = 16

/** Pipes for bulk. Only a direction with bytes under way holds one. */
export class PipePool {
  readonly #pipes: Pipes
  readonly #descriptors: DescriptorBudget
  readonly #idle: Pipe[] = []
  #open = 0

  constructor(pipes: Pipes, descriptors: DescriptorBudget) {
    this.#pipes = pipes
    this.#descriptors = descriptors
  }

  /** An empty pipe; undefined when there is none to be had, and bytes have to be copied. */
  take(): Pipe | undefined {
    const idle = this.#idle.pop()
    if (idle) return idle
    if (this.#open >= maxOpen || !this.#descriptors.tryTake(descriptorsPerPipe)) return undefined
    const pipe = this.#pipes.open(pipeBytes)
    if (pipe) this.#open++
    else this.#descriptors.release(descriptorsPerPipe)
    return pipe
  }

  giveBack(pipe: Pipe): void {
    if (this.#idle.length < maxIdle) this.#idle.push(pipe)
    else this.discard(pipe)
  }

  /** For a pipe with bytes left in it. */
  discard(pipe: Pipe): void {
    this.#pipes.close(pipe)
    this.#open--
    this.#descriptors.release(descriptorsPerPipe)
  }

  /** Lets idle pipes go; whether there were any. */
  shed(): boolean {
    const { length } = this.#idle
    for (const pipe of this.#idle) this.discard(pipe)
    this.#idle.length = 0
    return length > 0
  }
}
