// Writes a package.json and a package-lock.json for `npm start` alone: what runs, and the program that builds it.
// The versions and hashes are those of the whole lock; what tests and linters need is left out.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

const [folder = '.'] = process.argv.slice(2)
const lock = JSON.parse(readFileSync('package-lock.json', 'utf8'))
const { '': root, ...packages } = lock.packages
const { name, version, engines, devDependencies } = root
const dependencies = { ...root.dependencies, esbuild: devDependencies.esbuild }
const isOfBuilder = (path) => /^node_modules\/(@esbuild\/[^/]+|esbuild)$/.test(path)
const kept = Object.entries(packages).flatMap(([path, { dev, ...rest }]) =>
  !dev || isOfBuilder(path) ? [[path, rest]] : [],
)
const own = { name, version, engines, dependencies }
const write = (file, value) =>
  writeFileSync(join(folder, file), JSON.stringify(value, undefined, 2))
mkdirSync(folder, { recursive: true })
write('package.json', { ...own, private: true })
write('package-lock.json', { ...lock, packages: { '': own, ...Object.fromEntries(kept) } })
