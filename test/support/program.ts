import { fileURLToPath } from 'node:url'
import {
  runProxy as runProxyBy,
  type RunningProxy,
} from '../../lib/lab/playground/proxy-process.js'
import type { World } from '../../lib/lab/world/world.js'

/**
 * The program of a node. `scripts/node-program.mjs` builds it as one file, as in images and
 * packages: a short command spends half of its time on reading modules. Without that file it is
 * the modules.
 */
export const program =
  process.env['TEST_NODE_PROGRAM'] ??
  fileURLToPath(new URL('../../lib/cli/main.js', import.meta.url))

/** Starts the program on the node of a world; `by` is a command that starts it. */
export function runProxy(
  world: World,
  args: readonly string[],
  onLine?: (line: string) => void,
  by: readonly string[] = [],
): RunningProxy {
  return runProxyBy(world, args, onLine, [...by, process.execPath, program])
}
