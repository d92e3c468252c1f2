// Runs benchmarks and writes docs/benchmarks.md.
import { spawn, spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { cpus, release, totalmem } from 'node:os'
import { parseArgs } from 'node:util'
import { benchmarksMarkdown } from '../build/bench/support/markdown.js'
import { parsePeer } from '../build/bench/support/peers.js'
import { withUsage } from '../build/test/support/usage.js'
import { putProgramTogether } from './node-program.mjs'

/** Longer than any benchmark takes. One that hangs is ended, so that the others still run. */
const limitMs = 1_800_000
const folder = 'build/bench-results'

const usage = `npm run bench -- [NAME]... [--resume] [--page] [--peer NAME=COMMAND]...
  without names all of them, then the page; with names only these, and the page stays as it is
  --resume    all that have no result of today yet, then the page
  --page      only the page, from the results there are
  --peer      another proxy in the same run; may be repeated`

const { values, positionals } = withUsage(usage, () =>
  parseArgs({
    allowPositionals: true,
    options: {
      peer: { type: 'string', multiple: true, default: [] },
      resume: { type: 'boolean', default: false },
      page: { type: 'boolean', default: false },
    },
  }),
)
const names = readdirSync('build/bench')
  .filter((file) => file.endsWith('.js'))
  .map((file) => file.slice(0, -3))
const unknown = positionals.filter((name) => !names.includes(name))
if (unknown.length > 0) {
  console.error(`unknown benchmark ${unknown.join(', ')}; there are: ${names.join(', ')}`)
  process.exit(2)
}
try {
  values.peer.forEach(parsePeer)
} catch (error) {
  console.error(error.message)
  process.exit(2)
}

mkdirSync(folder, { recursive: true })
const fileOf = (name) => `${folder}/${name}.json`
const read = (name) => JSON.parse(readFileSync(fileOf(name), 'utf8'))
const today = new Date().toISOString().slice(0, 10)
const isDone = (name) => {
  if (!existsSync(fileOf(name))) return false
  const { date, failure } = read(name)
  return failure === undefined && date.startsWith(today)
}

const wanted = positionals.length > 0 ? positionals : names
let hasFailed = false
for (const name of values.page ? [] : wanted) {
  if (values.resume && isDone(name)) {
    console.log(`\n## ${name}: done already`)
    continue
  }
  console.log(`\n## ${name}`)
  if (['daemon', 'ipvs'].includes(name)) putProgramTogether()
  const began = Date.now()
  rmSync(fileOf(name), { force: true })
  const failure = await run(name)
  if (failure === undefined) continue
  hasFailed = true
  console.error(`${name}: ${failure}`)
  const seconds = Math.round((Date.now() - began) / 1000)
  const report = {
    area: name,
    date: new Date().toISOString(),
    seconds,
    load: 0,
    results: [],
    failure,
  }
  writeFileSync(fileOf(name), JSON.stringify(report))
}
if (values.page || positionals.length === 0) {
  const reports = names.filter((name) => existsSync(fileOf(name))).map(read)
  writeFileSync('docs/benchmarks.md', benchmarksMarkdown(machine(), reports))
  console.log('\ndocs/benchmarks.md is written')
}
process.exitCode = hasFailed ? 1 : 0

/** Runs a benchmark in a process of its own; resolves to why it failed, or to undefined. */
function run(name) {
  return new Promise((resolve) => {
    const script = 'build/bench/support/area-main.js'
    const argv = ['--expose-gc', script, name, fileOf(name), ...values.peer]
    const child = spawn(process.execPath, argv, {
      stdio: 'inherit',
      timeout: limitMs,
      killSignal: 'SIGKILL',
    })
    child.on('error', (error) => resolve(error.message))
    child.on('close', (code, signal) => {
      if (code === 0 && existsSync(fileOf(name))) resolve(undefined)
      else resolve(signal === null ? `ended with code ${code}` : `no end after ${limitMs / 1000} s`)
    })
  })
}

function machine() {
  const first = (...argv) => {
    const { stdout, error } = spawnSync(argv[0], argv.slice(1), { encoding: 'utf8' })
    return error ? 'not there' : stdout.split('\n')[0].trim()
  }
  const version = JSON.parse(readFileSync('package.json', 'utf8')).version
  const commit = first('git', 'rev-parse', '--short', 'HEAD')
  return {
    'kube-proxy-ts': `${version}, commit ${commit}`,
    processor: `${cpus().length} x ${cpus()[0]?.model ?? 'unknown'}`,
    memory: `${Math.round(totalmem() / 2 ** 30)} GiB`,
    kernel: release(),
    Node: process.version,
    nft: first('nft', '--version'),
    iptables: first('iptables', '--version'),
    HAProxy: first('haproxy', '-v').replace(/ - .*/, ''),
  }
}
