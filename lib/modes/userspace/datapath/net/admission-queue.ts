import { reset } from '../../../../kernel/sockets/reset.js'
import type { Socket } from 'node:net'
import type { DescriptorBudget } from '../descriptors.js'

const lookEveryMs = 50

/**
 * Clients that were accepted while no descriptors were left for their endpoints. Node cannot
 * pause accepting, so some clients wait here in order of arrival, each with its own descriptor out
 * of the reserve. Nothing is read from them meanwhile.
 */
export class AdmissionQueue {
  readonly #descriptors: DescriptorBudget
  readonly #admit: (client: Socket) => boolean
  readonly #clients = new Set<Socket>()
  #timer: NodeJS.Timeout | undefined

  /** `admit` answers false while there are still no descriptors. */
  constructor(descriptors: DescriptorBudget, admit: (client: Socket) => boolean) {
    this.#descriptors = descriptors
    this.#admit = admit
  }

  get hasClients(): boolean {
    return this.#clients.size > 0
  }

  /** False when the queue is full. */
  add(client: Socket): boolean {
    if (!this.#descriptors.tryWait()) return false
    this.#clients.add(client)
    client.on('error', () => client.destroy())
    client.once('close', () => this.#remove(client))
    this.#timer ??= setInterval(() => this.#look(), lookEveryMs)
    return true
  }

  /** Resets all clients that wait, because the listener stops. */
  empty(): void {
    for (const client of this.#clients) reset(client)
  }

  #look(): void {
    for (const client of this.#clients) {
      if (!this.#admit(client)) return
      this.#remove(client)
    }
  }

  #remove(client: Socket): void {
    if (!this.#clients.delete(client)) return
    this.#descriptors.stopWaiting()
    if (this.#clients.size > 0) return
    clearInterval(this.#timer)
    this.#timer = undefined
  }
}
