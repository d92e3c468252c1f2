import { fileURLToPath } from 'node:url'

/**
 * The program of a node. `scripts/test.mjs` builds it as one file, as in images and packages: a
 * short command spends half of its time on reading modules. Without that file it is the modules.
 */
export const program =
  process.env['TEST_NODE_PROGRAM'] ??
  fileURLToPath(new URL('../../lib/cli/main.js', import.meta.url))
