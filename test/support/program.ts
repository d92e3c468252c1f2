import { fileURLToPath } from 'node:url'

/**
 * The program on a node: in one file, as images and packages have it, where `scripts/test.mjs` has put it
 * together, because half of what a short command costs is to read its modules. Otherwise the modules.
 */
export const program =
  process.env['TEST_NODE_PROGRAM'] ??
  fileURLToPath(new URL('../../lib/cli/main.js', import.meta.url))
