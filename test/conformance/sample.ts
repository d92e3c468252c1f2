import type { Case } from './case.js'
import { readCases } from './case-file.js'
import { casesFolder } from './cases-folder.js'

/** A few cases of every topic, for tests of the whole command. */
const sample = [
  'S01 S07: every client reaches every ready endpoint, in both families',
  'S24: a pod that reaches itself through its Service is masqueraded',
  'S23 NF24: with node port addresses set to primary only the node',
  'S17 S19: external policy Local without any endpoint is refused',
  'S12 S13: source ranges let in only the named clients',
  'E18: a change of the node',
  'S21: new endpoints do not move a client that has one',
  'CT03: UDP: a client whose Service lost its last endpoint',
  'S03 e2e service.go:2294: a Service with the label of another proxy',
  'R13: changes while the proxy is down are applied at its start',
  'IT21: with masquerade-all even a pod of this node is masqueraded',
]

export function sampleOfCases(): readonly Case[] {
  const cases = readCases(casesFolder)
  return sample.map((start) => {
    const found = cases.filter(({ name }) => name.startsWith(start))
    const [only] = found
    if (!only || found.length > 1) throw new Error(`${found.length} cases begin with: ${start}`)
    return only
  })
}
