// Prints a CycloneDX 1.5 bill of materials of what runs, from package-lock.json: `npm run sbom`.
// Needs no network. `--dev` adds the tools of development.
import { readFileSync } from 'node:fs'

const read = (file) => JSON.parse(readFileSync(new URL(`../${file}`, import.meta.url), 'utf8'))
const { name, version, description, license } = read('package.json')
const { packages } = read('package-lock.json')
const withDev = process.argv.includes('--dev')

const nameOf = (folder) => folder.replace(/^.*node_modules\//, '')
const purlOf = (folder) =>
  `pkg:npm/${nameOf(folder).replace('@', '%40')}@${packages[folder].version}`

/** Where Node finds a package that is asked for from a folder: beside it, or further up. */
function find(from, wanted) {
  for (let at = from; ; at = at.slice(0, at.lastIndexOf('node_modules/')).replace(/\/$/, '')) {
    const folder = `${at === '' ? '' : `${at}/`}node_modules/${wanted}`
    if (folder in packages) return folder
    if (at === '') return undefined
  }
}

const folders = Object.keys(packages).filter(
  (folder) => folder !== '' && (withDev || packages[folder].dev !== true),
)
const dependsOn = (folder) => {
  const { dependencies = {}, optionalDependencies = {} } = packages[folder]
  const found = Object.keys({ ...dependencies, ...optionalDependencies }).map((wanted) =>
    find(folder, wanted),
  )
  return [...new Set(found.filter((one) => folders.includes(one)).map(purlOf))].sort()
}

const components = new Map(
  folders.map((folder) => {
    const { version, license, integrity, optional } = packages[folder]
    const [algorithm, hash] = integrity.split('-')
    const component = {
      type: 'library',
      'bom-ref': purlOf(folder),
      name: nameOf(folder),
      version,
      purl: purlOf(folder),
      scope: optional ? 'optional' : 'required',
      hashes: [
        {
          alg: algorithm.toUpperCase().replace('SHA', 'SHA-'),
          content: Buffer.from(hash, 'base64').toString('hex'),
        },
      ],
      ...(license === undefined ? {} : { licenses: [{ expression: license }] }),
    }
    return [component.purl, component]
  }),
)
const self = `pkg:npm/${name}@${version}`
const bom = {
  bomFormat: 'CycloneDX',
  specVersion: '1.5',
  version: 1,
  metadata: {
    component: {
      type: 'application',
      'bom-ref': self,
      name,
      version,
      description,
      licenses: [{ expression: license }],
    },
  },
  components: [...components.values()],
  dependencies: [
    { ref: self, dependsOn: dependsOn('') },
    ...new Map(
      folders.map((folder) => [
        purlOf(folder),
        { ref: purlOf(folder), dependsOn: dependsOn(folder) },
      ]),
    ).values(),
  ],
}
process.stdout.write(`${JSON.stringify(bom, undefined, 2)}\n`)
