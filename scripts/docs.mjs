// Writes the documents that are made from tables in the code: `npm run docs`.
import { writeFileSync } from 'node:fs'
import { configurationMarkdown } from '../build/lib/config/document.js'
import { metricsMarkdown } from '../build/lib/observe/document.js'

const documents = {
  'docs/configuration.md': configurationMarkdown(),
  'docs/metrics.md': metricsMarkdown(),
}
for (const [path, text] of Object.entries(documents)) {
  writeFileSync(new URL(`../${path}`, import.meta.url), text)
}
