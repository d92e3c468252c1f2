import type { PageCommand } from '../../page/view.js'
import type { WebApp } from './web-app.js'
import type { YamlObjects } from './yaml-objects.js'

export type ChangeCommand = Extract<
  PageCommand,
  { readonly do: 'replicas' | 'pod' | 'affinity' | 'policy' | 'type' | 'ranges' | 'apply' }
>

export interface Changeable {
  readonly app: WebApp
  readonly yaml: YamlObjects
}

/** What goes through the API server; to the words behind `kubectl` that do the same. */
export function changeCluster(
  command: ChangeCommand,
  { app, yaml }: Changeable,
): string | Promise<string> {
  switch (command.do) {
    case 'replicas':
      return app.scale(command.count)
    case 'pod':
      return app.act(command.pod, command.action)
    case 'affinity':
      return app.setAffinity(command.on)
    case 'policy':
      return app.setPolicy(command.side, command.value)
    case 'type':
      return app.setType(command.type)
    case 'ranges':
      return app.setSourceRanges(command.ranges)
    case 'apply':
      return yaml.apply(command.yaml)
  }
}
