import type { Pipe, Pipes } from '../../../../kernel/sockets/pipe.js'
import type { DescriptorBudget } from '../descriptors.js'

/** A pipe has two ends. */
const descriptorsPerPipe = 2
/** One splice moves at most so many bytes. Ordinary users get no larger pipes. */
export const pipeBytes = 1 << 20
/**
 * Slow readers keep their pipes full, so these pipes take up to 64 MiB of kernel memory a worker.
 * Flows without a pipe copy their bytes.
 */
const maxOpen = 64
/** More idle pipes would only help another burst. */
const maxIdle = 16

/** Pipes for bulk data. A flow has one only while it has bytes to move. */
export class PipePool {
  readonly #pipes: Pipes
  readonly #descriptors: DescriptorBudget
  readonly #idle: Pipe[] = []
  #open = 0

  constructor(pipes: Pipes, descriptors: DescriptorBudget) {
    this.#pipes = pipes
    this.#descriptors = descriptors
  }

  /** An empty pipe; undefined when there is none, and bytes have to be copied. */
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

  /** Closes idle pipes. Answers whether there were any. */
  shed(): boolean {
    const { length } = this.#idle
    for (const pipe of this.#idle) this.discard(pipe)
    this.#idle.length = 0
    return length > 0
  }
}
