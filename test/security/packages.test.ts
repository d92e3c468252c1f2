import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { spawnSync } from 'node:child_process'
import t from 'tap'

const root = fileURLToPath(new URL('../../..', import.meta.url))

interface Entry {
  readonly version?: string
  readonly resolved?: string
  readonly integrity?: string
  readonly dev?: boolean
  readonly optional?: boolean
  readonly hasInstallScript?: boolean
}

const lock = JSON.parse(readFileSync(`${root}/package-lock.json`, 'utf8')) as {
  readonly packages: Readonly<Record<string, Entry>>
}
const packages = Object.entries(lock.packages).filter(([folder]) => folder !== '')

t.test('package-lock.json pins every package by its content', (t) => {
  t.ok(packages.length > 100)
  for (const [folder, { integrity, version }] of packages) {
    t.match(integrity, /^sha512-[A-Za-z0-9+/]{86}==$/, folder)
    t.match(version, /^\d+\.\d+\.\d+/, folder)
  }
  t.end()
})

t.test('of the packages that run, only koffi may run a script when it is installed', (t) => {
  const scripted = packages.filter(([, entry]) => entry.hasInstallScript && !entry.dev)
  t.same(
    scripted.map(([folder]) => folder),
    ['node_modules/koffi'],
  )
  t.end()
})

t.test('npm start installs what runs and the program that builds it, by the same hashes', (t) => {
  const folder = t.testdir()
  const args = [`${root}/scripts/start-packages.mjs`, folder]
  const run = spawnSync(process.execPath, args, { cwd: root, encoding: 'utf8' })
  t.equal(run.status, 0, run.stderr)
  const read = (file: string) =>
    JSON.parse(readFileSync(`${folder}/${file}`, 'utf8')) as {
      readonly packages: Readonly<Record<string, Entry>>
      readonly dependencies: Readonly<Record<string, string>>
    }
  const { dependencies } = read('package.json')
  const { '': own, ...start } = read('package-lock.json').packages
  t.match(own, { dependencies })
  for (const name of Object.keys(dependencies)) t.ok(start[`node_modules/${name}`], name)
  for (const [path, { integrity }] of packages.filter(([, { dev }]) => !dev))
    t.equal(start[path]?.integrity, integrity, path)
  for (const [path, { integrity, dev }] of Object.entries(start)) {
    t.equal(integrity, lock.packages[path]?.integrity, path)
    if (lock.packages[path]?.dev) t.match(path, /^node_modules\/@?esbuild/)
    t.not(dev, true, `${path}: npm would leave it out`)
  }
  t.end()
})

t.test('the command of SECURITY.md lists every package that runs, as CycloneDX', (t) => {
  const page = readFileSync(`${root}/SECURITY.md`, 'utf8')
  const [, command = ''] = /^\$ (npm run .*) > sbom\.json/m.exec(page) ?? []
  const [file = '', ...args] = command.split(' ')
  // The test runs the documented command, because npm adds its own lines to the JSON without flags.
  const run = spawnSync(file, args, { cwd: root, encoding: 'utf8' })
  t.equal(run.status, 0, run.stderr)
  const sbom = JSON.parse(run.stdout) as {
    readonly bomFormat: string
    readonly specVersion: string
    readonly metadata: { readonly component: { readonly name: string } }
    readonly components: readonly {
      readonly purl: string
      readonly hashes: readonly { readonly alg: string; readonly content: string }[]
    }[]
    readonly dependencies: readonly {
      readonly ref: string
      readonly dependsOn: readonly string[]
    }[]
  }
  t.match(sbom, { bomFormat: 'CycloneDX', specVersion: '1.5' })
  t.equal(sbom.metadata.component.name, 'kube-proxy-ts')
  const running = packages.filter(([, { dev }]) => dev !== true)
  t.equal(
    sbom.components.length,
    new Set(
      running.map(
        ([folder, { version }]) => `${folder.replace(/^.*node_modules\//, '')}@${version}`,
      ),
    ).size,
  )
  for (const { purl, hashes } of sbom.components) {
    t.match(purl, /^pkg:npm\/(%40[\w.-]+\/)?[\w.-]+@[\w.+-]+$/)
    t.match(hashes, [{ alg: 'SHA-512', content: /^[0-9a-f]{128}$/ }])
  }
  const known = new Set(sbom.components.map(({ purl }) => purl))
  for (const { dependsOn } of sbom.dependencies)
    for (const ref of dependsOn) t.ok(known.has(ref), ref)
  t.end()
})
