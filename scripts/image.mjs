// Makes a container image without a container engine, as an OCI layout: `npm run image`.
//   node scripts/image.mjs ROOTFS FOLDER     ROOTFS is what scripts/rootfs made; FOLDER must not exist
// The command and the environment are those of the Dockerfile. The same files give the same bytes, so
// that every build of the same commit on the same system has the same digest.
import { createHash } from 'node:crypto'
import { spawnSync } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { gzipSync } from 'node:zlib'

const [rootfs, to] = process.argv.slice(2)
if (rootfs === undefined || to === undefined) {
  console.error('usage: node scripts/image.mjs ROOTFS FOLDER')
  process.exit(2)
}
const architecture = { x64: 'amd64', arm64: 'arm64' }[process.arch]
const read = (path) => readFileSync(new URL(`../${path}`, import.meta.url), 'utf8')
const { version, description, license } = JSON.parse(read('package.json'))
/** The last stage, which makes the image. */
const dockerfile = read('Dockerfile')
  .split(/^FROM /m)
  .at(-1)
const instruction = (word) => new RegExp(`^${word} (.*)$`, 'm').exec(dockerfile)?.[1] ?? ''

mkdirSync(`${to}/blobs/sha256`, { recursive: true })

const digestOf = (bytes) => `sha256:${createHash('sha256').update(bytes).digest('hex')}`

function blob(mediaType, bytes) {
  const digest = digestOf(bytes)
  writeFileSync(`${to}/blobs/${digest.replace(':', '/')}`, bytes)
  return { mediaType, digest, size: bytes.length }
}

const json = (mediaType, value) => blob(mediaType, Buffer.from(JSON.stringify(value)))

/** The last layer is small, and the only one that changes with every version. */
const layers = [['--exclude=./app', '.'], ['./app']].map((what) => {
  const same = ['--sort=name', '--mtime=@0', '--owner=0', '--group=0', '--numeric-owner']
  const args = [...same, '--format=gnu', '-C', rootfs, '-cf', '-', ...what]
  const { status, stdout, stderr } = spawnSync('tar', args, { maxBuffer: 2 ** 30 })
  if (status !== 0) throw new Error(`pack ${rootfs}: ${stderr}`)
  return { tar: stdout, command: `scripts/image.mjs ${what.at(-1)}` }
})

const vendor = 'application/vnd.oci.image'
const config = json(`${vendor}.config.v1+json`, {
  architecture,
  os: 'linux',
  config: {
    User: instruction('USER'),
    Env: [instruction('ENV')],
    Entrypoint: JSON.parse(instruction('ENTRYPOINT')),
  },
  rootfs: { type: 'layers', diff_ids: layers.map(({ tar }) => digestOf(tar)) },
  history: layers.map(({ command }) => ({ created_by: command })),
})
const manifest = json(`${vendor}.manifest.v1+json`, {
  schemaVersion: 2,
  mediaType: `${vendor}.manifest.v1+json`,
  config,
  layers: layers.map(({ tar }) => blob(`${vendor}.layer.v1.tar+gzip`, gzipSync(tar))),
  annotations: {
    'org.opencontainers.image.title': 'kube-proxy-ts',
    'org.opencontainers.image.version': version,
    'org.opencontainers.image.description': description,
    'org.opencontainers.image.licenses': license,
  },
})
const named = {
  ...manifest,
  platform: { architecture, os: 'linux' },
  annotations: { 'org.opencontainers.image.ref.name': version },
}
writeFileSync(
  `${to}/index.json`,
  JSON.stringify({ schemaVersion: 2, mediaType: `${vendor}.index.v1+json`, manifests: [named] }),
)
writeFileSync(`${to}/oci-layout`, JSON.stringify({ imageLayoutVersion: '1.0.0' }))
console.log(manifest.digest)
