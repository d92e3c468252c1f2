import type { FaultGroup } from '../fault.js'
import { apiFaults } from './api.js'
import { firstSyncFaults } from './first-sync.js'
import { machineFaults } from './machine.js'
import { processFaults } from './process.js'
import { ruleFaults } from './rules.js'

/** A new fault is an object in one of these files. `npm run docs` writes its promises. */
export const faultGroups: readonly FaultGroup[] = [
  processFaults,
  firstSyncFaults,
  ruleFaults,
  apiFaults,
  machineFaults,
]
