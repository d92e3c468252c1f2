import { ConfigError } from '../../errors.js'
import type { Learning } from './learning.js'
import type { ModeSwitch } from './mode-switch.js'
import type { PageCommand } from '../../page/page-command.js'
import type { PodMarks } from './pod-marks.js'
import type { Selection } from './selection.js'
import type { ShownService } from './shown-service.js'
import type { Traffic } from './traffic.js'
import type { WebApp } from './web-app.js'
import type { YamlObjects } from './yaml-objects.js'

interface CommandsDeps {
  readonly app: WebApp
  readonly yaml: YamlObjects
  readonly marks: PodMarks
  readonly selection: Selection
  readonly shown: ShownService
  readonly modeSwitch: ModeSwitch
  readonly traffic: Traffic
  readonly learning: Learning
  readonly use: (mode: string) => Promise<void>
  readonly refresh: () => void
}

const refusals = {
  family: 'show another family: the playground sends over IPv4 only',
  flows: 'filter the stream: only the page of a running proxy has one',
} as const

/** Does what a reader of the page asks for. */
export class Commands {
  readonly #deps: CommandsDeps
  #kubectl = 'kubectl get pods,services,endpointslices -o wide'

  constructor(deps: CommandsDeps) {
    this.#deps = deps
  }

  /** The command of kubectl that does the same as the last change. */
  get kubectl(): string {
    return this.#kubectl
  }

  async perform(command: PageCommand): Promise<void> {
    const { app, yaml, marks, selection, shown, modeSwitch, traffic, learning } = this.#deps
    switch (command.do) {
      case 'mode':
        return this.#deps.use(command.mode)
      case 'scheduler':
        await this.#schedule(command.scheduler)
        break
      case 'select':
        this.#kubectl = `kubectl ${app.select(command.service)}`
        break
      case 'sender':
        selection.sendFrom(command.sender)
        break
      case 'target':
        selection.wanted = command.target
        break
      case 'family':
      case 'flows':
        throw new ConfigError(refusals[command.do])
      case 'rules':
        shown.rules.show(command.mode, modeSwitch.mode)
        break
      case 'compare':
        shown.comparison.show(command.modes)
        break
      case 'send':
        return this.#send(command.count)
      case 'continuous':
        traffic.setContinuous(command.on)
        break
      case 'clear':
        traffic.clear()
        break
      case 'lesson':
      case 'predict':
      case 'exercise':
      case 'check':
        await learning.perform(command)
        break
      case 'marks':
        return marks.put(command.marks)
      case 'apply':
        this.#did(await yaml.apply(command.yaml))
        break
      default:
        this.#did(app.change(command))
    }
    this.#deps.refresh()
  }

  async #schedule(scheduler: string): Promise<void> {
    const { modeSwitch, use } = this.#deps
    modeSwitch.scheduler = scheduler
    if (modeSwitch.mode === 'ipvs') await use('ipvs')
  }

  async #send(count: number): Promise<void> {
    await this.#deps.modeSwitch.settled()
    await this.#deps.traffic.send(count)
  }

  #did(words: string): void {
    this.#deps.shown.rules.because(words)
    this.#kubectl = `kubectl ${words}`
  }
}
