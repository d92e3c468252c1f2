// Runs benchmarks: `npm run bench -- NAME …`, or all of them.
import { readdirSync } from 'node:fs'

const names = readdirSync('build/bench')
  .filter((file) => file.endsWith('.js'))
  .map((file) => file.slice(0, -3))
const chosen = process.argv.slice(2)
const unknown = chosen.filter((name) => !names.includes(name))
if (unknown.length > 0) {
  console.error(`unknown benchmark ${unknown.join(', ')}; there are: ${names.join(', ')}`)
  process.exit(2)
}
for (const name of chosen.length > 0 ? chosen : names) {
  console.log(`\n## ${name}`)
  const { run } = await import(`../build/bench/${name}.js`)
  await run()
}
