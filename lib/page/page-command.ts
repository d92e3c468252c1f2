import type { FlowChoice, IpFamily, Policy, Sender, ServiceType, TargetView } from './view.js'

export const podActions = ['terminate', 'kill', 'revive', 'unready', 'ready'] as const
export type PodAction = (typeof podActions)[number]

export type PageCommand =
  | { readonly do: 'mode'; readonly mode: string }
  | { readonly do: 'scheduler'; readonly scheduler: string }
  | { readonly do: 'select'; readonly service: string }
  | { readonly do: 'replicas'; readonly count: number }
  | { readonly do: 'pod'; readonly pod: string; readonly action: PodAction }
  /** Does to the pods of this cluster what `marks` of a view says. */
  | { readonly do: 'marks'; readonly marks: readonly string[] }
  | { readonly do: 'affinity'; readonly on: boolean }
  | { readonly do: 'policy'; readonly side: 'internal' | 'external'; readonly value: Policy }
  | { readonly do: 'type'; readonly type: ServiceType }
  | { readonly do: 'ranges'; readonly ranges: readonly string[] }
  | { readonly do: 'sender'; readonly sender: Sender }
  | { readonly do: 'target'; readonly target: TargetView['name'] }
  | { readonly do: 'family'; readonly family: IpFamily }
  | ({ readonly do: 'flows' } & FlowChoice)
  | { readonly do: 'send'; readonly count: 1 | 100 }
  | { readonly do: 'continuous'; readonly on: boolean }
  | { readonly do: 'clear' }
  | { readonly do: 'rules'; readonly mode: string }
  /** Two modes, or none to end the comparison. */
  | { readonly do: 'compare'; readonly modes: readonly string[] }
  /** `step`: the number of tasks that count as done. */
  | { readonly do: 'lesson'; readonly id: string; readonly step?: number }
  /** The answer to the question of the current task. */
  | { readonly do: 'predict'; readonly choice: number }
  | { readonly do: 'exercise'; readonly id: string }
  /** Finds out whether the current exercise is solved. */
  | { readonly do: 'check' }
  | { readonly do: 'apply'; readonly yaml: string }
