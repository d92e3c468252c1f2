// Writes the documents and profiles that are made from tables in the code: `npm run docs`.
import { readFileSync, writeFileSync } from 'node:fs'
import { configurationMarkdown } from '../build/test/config/document.js'
import { metricsMarkdown } from '../build/test/observe/document.js'
import { withPromises } from '../build/test/chaos/promises.js'
import { faultGroups } from '../build/test/chaos/faults/index.js'
import { withTable } from '../build/test/kernels/document.js'
import { Results } from '../build/test/kernels/results.js'
import { withRooms } from './rooms.mjs'
import { profileOf, systemCalls } from './seccomp.mjs'

const fileOf = (path) => new URL(`../${path}`, import.meta.url)
const documents = {
  'docs/configuration.md': configurationMarkdown(),
  'docs/metrics.md': metricsMarkdown(),
  'docs/architecture.md': withRooms(readFileSync(fileOf('docs/architecture.md'), 'utf8')),
  'docs/kernels.md': withTable(
    readFileSync(fileOf('docs/kernels.md'), 'utf8'),
    Results.read(fileOf('docs/kernels.json')),
  ),
  'docs/reliability.md': withPromises(
    readFileSync(fileOf('docs/reliability.md'), 'utf8'),
    faultGroups,
  ),
}
for (const mode of Object.keys(systemCalls)) {
  documents[`examples/kubernetes/overlays/${mode}/seccomp.json`] = profileOf(mode)
  documents[`examples/chart/files/seccomp/${mode}.json`] = profileOf(mode)
}
for (const [path, text] of Object.entries(documents)) writeFileSync(fileOf(path), text)
