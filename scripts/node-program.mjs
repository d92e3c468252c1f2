// Puts the program of a node into one file, for tests and benchmarks that start it.
import { spawnSync } from 'node:child_process'
import { resolve } from 'node:path'

/**
 * Writes build/node, and names its program to test/support/program.ts. Only the parent of all tests
 * or benchmarks does so: one of them would take the files away from others that start just then.
 */
export function putProgramTogether() {
  const argv = ['scripts/bundle.mjs', 'build/node']
  const { status, stderr, error } = spawnSync(process.execPath, argv, { encoding: 'utf8' })
  if (status !== 0) throw new Error(`put the program together: ${error?.message ?? stderr}`)
  process.env.TEST_NODE_PROGRAM = resolve('build/node/build/lib/cli/main.js')
}
