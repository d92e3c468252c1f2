import { modeLoaders, modeNames } from '../../lib/modes/registry.js'
import { missingSystem } from '../../lib/modes/systems.js'
import { runProgram, type Run } from '../../lib/kernel/iptables/command.js'
import type { Backend } from '../../lib/kernel/iptables.js'
import type { ModeDefinition } from '../../lib/modes/mode.js'
import type { ModeName } from '../../lib/config/config.js'
import type { Expected } from './flows.js'

/**
 * A mode under test, with its options. `iptables-legacy` is iptables mode with the older of its two
 * backends. `userspace-net` is userspace mode with the data path for systems where the faster one
 * does not load, and with endpoints that see this node. `userspace-addresses` is the same without
 * rules.
 */
export interface Variant {
  readonly mode: ModeName
  readonly dataPath?: 'net'
  /** The node gets the addresses of Services, and no rules. */
  readonly portals?: 'addresses'
  /** Absent: `auto`, which hides clients on the bridge of the endpoint. */
  readonly sourceAddress?: 'keep' | 'hide'
  readonly load: () => Promise<ModeDefinition>
}

/** Answers as the programs do on a kernel without xt_bpf. */
const withoutBpf: Run = (file, args, options) =>
  options?.stdin?.includes('-m bpf')
    ? Promise.resolve({ code: 2, stdout: '', stderr: `${file}: Couldn't load match \`bpf'` })
    : runProgram(file, args, options)

const ofIptables = (backend: Backend, run?: Run): Variant => ({
  mode: 'iptables',
  load: async () => {
    const { iptablesMode } = await import('../../lib/modes/iptables/index.js')
    return iptablesMode({ backend, ...(run ? { run } : {}) })
  },
})

const userspace = (options: Omit<Variant, 'mode' | 'load'>): Variant => ({
  mode: 'userspace',
  ...options,
  load: async () => (await import('../../lib/modes/userspace/index.js')).definition,
})

/** Variants with other data paths, where all endpoints see the clients or none does. */
const userspaceVariants: Readonly<Record<string, Variant>> = {
  'userspace-net': userspace({ dataPath: 'net', sourceAddress: 'hide' }),
  'userspace-keep': userspace({ sourceAddress: 'keep' }),
  'userspace-addresses': userspace({
    dataPath: 'net',
    portals: 'addresses',
    sourceAddress: 'hide',
  }),
  'userspace-net-keep': userspace({ dataPath: 'net', sourceAddress: 'keep' }),
}

/** Variants with a test of their own, which runs only the cases that differ. */
const special: Readonly<Record<string, Variant>> = {
  'iptables-without-bpf': ofIptables('nft', withoutBpf),
  'iptables-legacy-without-bpf': ofIptables('legacy', withoutBpf),
}

export function variantOf(name: string): Variant | undefined {
  if (name === 'iptables-legacy') return ofIptables('legacy')
  const ofUserspace = userspaceVariants[name]
  if (ofUserspace) return ofUserspace
  for (const [mode, load] of Object.entries(modeLoaders)) {
    if (mode === name) return { mode: mode as ModeName, load }
  }
  return special[name]
}

/** The mode whose expectations hold for a variant. Windows has no rules either. */
export function profileOf({ mode, portals }: Variant): ModeName {
  return portals === 'addresses' ? 'winuserspace' : mode
}

/** Where endpoints see the clients, as in kernel modes. */
export function keptBy({ mode, sourceAddress }: Variant): Pick<Expected, 'keepsSource'> {
  if (mode !== 'userspace' || sourceAddress === 'hide') return {}
  return { keepsSource: sourceAddress === 'keep' ? 'everywhere' : 'past-bridges' }
}

export const variantNames: readonly string[] = [
  ...modeNames.filter((mode) => !missingSystem(mode, 'linux')),
  'iptables-legacy',
  ...Object.keys(userspaceVariants),
]
