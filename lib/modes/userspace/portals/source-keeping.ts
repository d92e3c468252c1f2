import { messageOf } from '../../../errors.js'
import type { IpFamily } from '../../../state/ip.js'
import type { SourceSwitch } from '../datapath/source-keeper.js'
import { Complaints } from '../../complaints.js'
import type { Log } from '../../mode.js'
import { isMissing, notKeepable } from './open-portals.js'
import type { SourceRouting } from './source-routing.js'

interface SourceKeepingOptions {
  readonly routing: Pick<SourceRouting, 'ensure' | 'remove' | 'close'>
  readonly switch: SourceSwitch
  /** With `keep` the proxy does not start where addresses of clients cannot be kept. */
  readonly isRequired: boolean
  readonly log: Log
}

/** Prepares the kernel when the first Service wants to keep addresses, and tells the data paths. */
export class SourceKeeping {
  readonly #family: IpFamily
  readonly #options: SourceKeepingOptions
  #state: 'unused' | 'ready' | 'impossible' = 'unused'
  readonly #complaints: Complaints

  constructor(family: IpFamily, options: SourceKeepingOptions) {
    this.#family = family
    this.#options = options
    this.#complaints = new Complaints(options.log)
  }

  /** Call it before listeners open that keep the address of their clients. */
  async use(): Promise<void> {
    if (this.#state !== 'unused') return
    const { routing, isRequired, log } = this.#options
    const family = this.#family
    try {
      await routing.ensure()
    } catch (error) {
      if (isRequired) throw notKeepable(error)
      if (isMissing(error)) this.#state = 'impossible'
      this.#warn(error, 'endpoints see this node as their client, as its address cannot be kept')
      return
    }
    this.#state = 'ready'
    this.#options.switch.set(family, true)
    log.info(
      { family },
      'endpoints see the address of their clients where the kernel modes keep it',
    )
  }

  /** Writes rules and routes again that another program has removed. */
  async look(): Promise<void> {
    if (this.#state !== 'ready') return
    try {
      await this.#options.routing.ensure()
      this.#complaints.settled()
    } catch (error) {
      this.#warn(error, 'could not check the rules that keep the addresses of clients, will retry')
    }
  }

  /** Removes what an earlier process has left, unless this one needs it. */
  async tidy(): Promise<void> {
    if (this.#state !== 'ready') await this.remove()
  }

  async remove(): Promise<void> {
    this.#options.switch.set(this.#family, false)
    this.#state = 'unused'
    await removeSourceRouting(this.#family, this.#options, { sparesUsed: true })
  }

  #warn(error: unknown, text: string): void {
    this.#complaints.warn({ family: this.#family, reason: messageOf(error) }, text)
  }
}

/** Removes rules and routes that kept addresses of clients. They do no harm if that fails. */
export async function removeSourceRouting(
  family: IpFamily,
  { routing, log }: Pick<SourceKeepingOptions, 'routing' | 'log'>,
  spared: { readonly sparesUsed: boolean },
): Promise<void> {
  try {
    await routing.remove(spared)
  } catch (error) {
    log.debug(
      { family, reason: messageOf(error) },
      'rules and routes that kept addresses of clients cannot be removed',
    )
  }
  routing.close()
}
