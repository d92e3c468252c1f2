import type { ModeName } from '../../../lib/config/config.js'
import { inNamespaces } from '../../../lib/lab/playground/namespace-test-bed.js'
import { program } from '../../support/program.js'

/**
 * Clusters for these modes whose daemon is the program of a node. The whole playground, which the
 * tests of its command start, runs the modules.
 */
export const nodeTestBed = (modes: readonly ModeName[]) =>
  inNamespaces({ withCgroup: modes.includes('ebpf'), daemon: [process.execPath, program] })
