import { readFileSync } from 'node:fs'
import { classifyFailure, IptablesError, isIptablesError } from './error.js'
import { runProgram, type Run } from './command.js'
import { Memory } from './memory.js'

export type Family = 'IPv4' | 'IPv6'

/** The kernel interface the program speaks: nf_tables, or the older ip_tables. */
export type Backend = 'nft' | 'legacy'

export type Version = readonly [major: number, minor: number, patch: number]

/** The programs of one family and backend. */
export interface Programs {
  readonly command: string
  readonly save: string
  readonly restore: string
}

export interface Installed {
  readonly backend: Backend
  readonly version: Version
  readonly programs: Programs
}

/** The names of the programs; without a backend, those the system has chosen as default. */
function programsOf(family: Family, backend?: Backend): Programs {
  const base = family === 'IPv4' ? 'iptables' : 'ip6tables'
  const stem = backend ? `${base}-${backend}` : base
  return { command: stem, save: `${stem}-save`, restore: `${stem}-restore` }
}

/**
 * Reads `iptables v1.8.9 (nf_tables)`. Versions before 1.8 print no brackets, and all are legacy.
 */
function parseVersion(
  text: string,
): { readonly version: Version; readonly backend: Backend } | undefined {
  const found = /v(\d+)\.(\d+)(?:\.(\d+))?/.exec(text)
  if (!found) return undefined
  const version = [Number(found[1]), Number(found[2]), Number(found[3] ?? 0)] as const
  return { version, backend: text.includes('nf_tables') ? 'nft' : 'legacy' }
}

export function isAtLeast(version: Version, wanted: Version): boolean {
  for (const [index, part] of wanted.entries()) {
    const have = version[index] ?? 0
    if (have !== part) return have > part
  }
  return true
}

/**
 * The installed programs of one backend, or of the default; undefined where there are none. Throws
 * IptablesError `unsupported` where the kernel does not have what they need.
 */
async function findInstalled(
  run: Run,
  family: Family,
  backend: Backend | undefined,
): Promise<Installed | undefined> {
  const programs = programsOf(family, backend)
  const key = `${family} ${backend ?? ''}`
  const known = versions.get(run, key)
  if (known) return known
  try {
    const { code, stdout, stderr } = await run(programs.command, ['--version'])
    const parsed = code === 0 ? parseVersion(stdout) : undefined
    if (parsed) {
      const installed = { programs, ...parsed }
      versions.set(run, key, installed)
      return installed
    }
    const action = `${programs.command} --version`
    throw classifyFailure({ action, code, stderr: stderr || stdout })
  } catch (error) {
    if (isIptablesError(error, 'missing')) return undefined
    throw error
  }
}

/**
 * The programs of a backend, or with `auto` those that this node uses. Where the default is of a
 * backend that this kernel does not have, the other one is taken. Before 1.8 there is only the
 * default, whose name has no backend.
 */
export async function findPrograms(
  run: Run,
  family: Family,
  backend: Backend | 'auto',
): Promise<Installed> {
  const isAuto = backend === 'auto'
  const first = isAuto ? await chooseBackend(run) : backend
  const { command } = programsOf(family, first)
  let failure = new IptablesError(
    'missing',
    `find ${command}: not in PATH, /usr/sbin or /sbin; install iptables`,
  )
  const others = isAuto ? ([undefined, 'legacy', 'nft'] as const) : [undefined]
  for (const one of new Set([first, ...others])) {
    try {
      const installed = await findInstalled(run, family, one)
      if (!installed || (!isAuto && installed.backend !== backend)) continue
      const chosen = one ? installed : await namedPrograms(run, family, installed)
      await requireFamily(run, family, chosen)
      if (isAuto) found.set(run, '', installed.backend)
      return chosen
    } catch (error) {
      // Without descriptors or rights nothing is known about the backend.
      if (!isIptablesError(error, 'unsupported')) throw error
      if (failure.kind === 'missing' && (isAuto || one)) failure = error
    }
  }
  throw failure
}

/**
 * The same programs under the name of their backend, where there are such. The default may become
 * another backend later, as with update-alternatives, and rules would then be in both.
 */
async function namedPrograms(run: Run, family: Family, chosen: Installed): Promise<Installed> {
  try {
    const named = await findInstalled(run, family, chosen.backend)
    return named?.backend === chosen.backend ? named : chosen
  } catch (error) {
    if (isIptablesError(error, 'unsupported')) return chosen
    throw error
  }
}

/** What every kernel refuses as a whole, because a rule leads to the chain that goes. */
const refusedByAll = `*nat
:IPTABLES-TS-FROM - [0:0]
:IPTABLES-TS-TO - [0:0]
-A IPTABLES-TS-FROM -j IPTABLES-TS-TO
-X IPTABLES-TS-TO
COMMIT
`

/**
 * Throws `unsupported` where nf_tables has no tables of this family, as without NF_TABLES_IPV4. The
 * nft programs list nothing then, as on an empty node, and no option makes them ask the kernel.
 */
async function requireFamily(run: Run, family: Family, { backend, programs }: Installed) {
  if (backend === 'legacy' || familiesTaken.get(run, family)) return
  const { stderr } = await run(programs.restore, ['--noflush'], { stdin: refusedByAll })
  const refused = /^.*\b(?:TABLE|CHAIN)_ADD failed.*$/m.exec(stderr)?.[0]
  if (refused !== undefined) {
    const message = `find ${programs.command}: nf_tables of this kernel does not have ${family}: ${refused}`
    throw new IptablesError('unsupported', message, { detail: stderr })
  }
  familiesTaken.set(run, family, true)
}

const familiesTaken = new Memory<true>()

/** The search for it reads every rule. */
const found = new Memory<Backend>()

/** By family and backend. A cleanup asks for each of them in several modes. */
const versions = new Memory<Installed>()

/** Both families are opened at once, and the search is for both. */
const searches = new WeakMap<Run, Promise<Backend | undefined>>()

/** The backend that was found in the last minute, else {@link backendInUse}. */
async function chooseBackend(run: Run): Promise<Backend | undefined> {
  const known = found.get(run, '')
  if (known) return known
  const search = searches.get(run) ?? backendInUse(run).finally(() => searches.delete(run))
  searches.set(run, search)
  return search
}

/** Chains that kubelet keeps so that every program can find the node's backend. */
const hintChain = /^:(KUBE-IPTABLES-HINT|KUBE-KUBELET-CANARY) /m

/**
 * Chains of a Service proxy, in the modes that write by iptables. A restart must find them: what it
 * leaves in the other backend would go on leading connections.
 */
const proxyChain = /^:(KUBE-SERVICES|KUBE-PORTALS-CONTAINER) /m

/**
 * The backend that already holds this node's rules (IT48): the one with kubelet's hint chain, else
 * the one that alone has the chains of a Service proxy, else the one with more rules. Undefined when
 * neither has any; the default is used then.
 */
export async function backendInUse(
  run: Run,
  families: readonly Family[] = ['IPv4', 'IPv6'],
): Promise<Backend | undefined> {
  const saved = async (family: Family, backend: Backend, args: readonly string[] = []) => {
    try {
      return await run(programsOf(family, backend).save, args, { timeoutMs: 60_000 })
    } catch {
      return { code: 1, stdout: '' }
    }
  }
  const mangle = ['-t', 'mangle'] as const
  // nft comes first, because kubelet writes its hint with the node's own backend only.
  for (const family of families) {
    if (hintChain.test((await saved(family, 'nft', mangle)).stdout)) return 'nft'
  }
  const rules = { nft: 0, legacy: 0 }
  const hasProxy = { nft: false, legacy: false }
  const look = (backend: Backend, text: string) => {
    rules[backend] += countRules(text)
    hasProxy[backend] ||= proxyChain.test(text)
  }
  for (const family of families) {
    // The legacy program makes the table that it is asked for; without a name it reads what there
    // is. Root alone may see what there is.
    if (run === runProgram && legacyTables(family)?.length === 0) continue
    const all = await saved(family, 'legacy')
    const { stdout } = all.code === 0 ? all : await saved(family, 'legacy', mangle)
    if (hintChain.test(stdout)) return 'legacy'
    look('legacy', stdout)
  }
  for (const family of families) look('nft', (await saved(family, 'nft')).stdout)
  if (hasProxy.nft !== hasProxy.legacy) return hasProxy.nft ? 'nft' : 'legacy'
  if (rules.nft === rules.legacy) return undefined
  return rules.legacy > rules.nft ? 'legacy' : 'nft'
}

function countRules(text: string): number {
  return text.match(/^-/gm)?.length ?? 0
}

/**
 * The tables of the legacy backend in this network namespace, from where its save program has them.
 * Undefined where they cannot be read: root alone may.
 */
export function legacyTables(family: Family): readonly string[] | undefined {
  const file = family === 'IPv4' ? 'ip_tables_names' : 'ip6_tables_names'
  try {
    return readFileSync(`/proc/net/${file}`, 'utf8').split('\n').filter(Boolean)
  } catch (error) {
    const isAbsent = error instanceof Error && 'code' in error && error.code === 'ENOENT'
    return isAbsent ? [] : undefined
  }
}
