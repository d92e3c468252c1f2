import {
  Batch,
  isSameRule,
  rule,
  targetOf,
  type Iptables,
  type PlacedRule,
  type RestoreOptions,
} from '../../../kernel/iptables.js'
import { addressText } from '../../../kernel/addresses.js'
import { kernelError } from '../../../kernel/command.js'
import type { ListedSocket } from '../../../kernel/listed-sockets.js'
import type { Routes } from '../../../kernel/routes.js'
import { loadLibc } from '../../../kernel/sockets/libc.js'
import { Sockets } from '../../../kernel/sockets/sockets.js'
import { SystemCallError } from '../../../kernel/sockets/errno.js'
import type { IpFamily } from '../../../state/ip.js'
import { ForeignCommits } from '../../foreign-commits.js'
import { removeChains } from '../../remove-chains.js'
import { sourceChains, sourceComment, sourceDiversion } from '../names.js'

/** No machine has these addresses. A socket gets one only with the right to take any address. */
const foreign = { IPv4: '192.0.2.1', IPv6: '2001:db8::1' } as const

const mark = `0x${sourceDiversion.mark.toString(16)}`
const masked = `${mark}/${mark}`
const isAnswer = { name: 'conntrack', args: ['--ctdir', 'REPLY'] } as const
const setMark = { jump: 'MARK', jumpArgs: ['--set-xmark', masked] } as const

/** Our chains with their rules, and the built-in chain that jumps to each. */
const hooks = [
  {
    from: 'PREROUTING',
    chain: sourceChains.PREROUTING,
    rules: [
      // Of any protocol: what says that a port is closed or a packet too large is ICMP.
      rule({ matches: [isAnswer, { name: 'socket', args: ['--transparent'] }], ...setMark }),
      // On `lo` only such sockets have a foreign address: they send to an endpoint on the node.
      rule({
        inInterface: 'lo',
        matches: [
          { name: 'conntrack', args: ['--ctdir', 'ORIGINAL'] },
          { name: 'addrtype', args: ['!', '--src-type', 'LOCAL'] },
        ],
        jump: 'CONNMARK',
        jumpArgs: ['--set-xmark', masked],
      }),
    ],
  },
  {
    from: 'OUTPUT',
    chain: sourceChains.OUTPUT,
    // Answers of an endpoint in the node's own network only go out; they do not come in.
    rules: [
      rule({ matches: [isAnswer, { name: 'connmark', args: ['--mark', masked] }], ...setMark }),
    ],
  },
] as const

/** The rules of this file in chains of others. */
export const sourceJumps: readonly PlacedRule[] = hooks.map(({ from, chain }) => ({
  ...{ table: 'mangle', chain: from, rule: rule({ comment: sourceComment, jump: chain }) },
}))

/**
 * What the kernel needs for sockets with the address of a client. An endpoint answers to that
 * address. The answer gets a mark if a socket of this node waits for it, and marked packets are
 * delivered here. Without such a socket no packet is marked, so the rules of a process that was
 * killed do no harm.
 */
export class SourceRouting {
  readonly #family: IpFamily
  readonly #open: () => Promise<Iptables>
  readonly #foreign: ForeignCommits
  /** `ForeignCommits.mark` when the rules were last found right. */
  #right: number | undefined
  #iptables: Iptables | undefined
  #routes: Routes | undefined

  constructor(
    family: IpFamily,
    open: () => Promise<Iptables>,
    foreign: ForeignCommits = new ForeignCommits(),
  ) {
    this.#family = family
    this.#open = open
    this.#foreign = foreign
  }

  /**
   * Writes what is missing. Rejects with the reason where this node cannot do it. Where the kernel
   * counts transactions, rules are read only after one of another program.
   */
  async ensure(): Promise<void> {
    await this.#tryRights()
    this.#routes ??= await openRoutes()
    this.#routes.divert(this.#family, sourceDiversion)
    const { mark } = this.#foreign
    if (mark !== undefined && mark === this.#right) return
    this.#iptables ??= await this.#open()
    const present = await readChains(this.#iptables)
    const isRight = isWritten(present)
    if (!isRight) await write(this.#iptables, rulesOver(present))
    const isCounted = this.#iptables.capabilities.backend === 'nft'
    this.#right = isRight && isCounted ? mark : undefined
  }

  /** Rejects where `ensure` would reject. Changes nothing. */
  async probe(): Promise<void> {
    await this.#tryRights()
    await write(await this.#open(), rulesOver(new Map()), { test: true })
  }

  /**
   * Removes what this or an earlier process has written. With `sparesUsed` it stays while another
   * process has connections from addresses of clients: that process drains, and removes it.
   */
  async remove({ sparesUsed = false } = {}): Promise<void> {
    this.#routes ??= await openRoutes()
    if (sparesUsed && (await isInUse(this.#family, this.#routes))) return
    this.#routes.undivert(this.#family, sourceDiversion)
    this.#iptables ??= await this.#open()
    this.#right = undefined
    await this.#removeRules(this.#iptables)
    await forgetEndedSockets(this.#family, this.#routes)
  }

  async #removeRules(iptables: Iptables): Promise<void> {
    const ours = hooks.map(({ chain }) => ['mangle', chain] as const)
    if (!(await iptables.hasAny(ours))) return
    const batch = new Batch()
    removeChains(batch, await iptables.save('mangle'), ours)
    await iptables.restore(batch)
  }

  close(): void {
    this.#routes?.close()
    this.#routes = undefined
  }

  async #tryRights(): Promise<void> {
    const sockets = new Sockets(await loadLibc())
    const fd = sockets.openAs({ ip: foreign[this.#family], port: 0 }, 'stream')
    if (fd < 0) throw new SystemCallError('open a socket with the address of a client', fd)
    sockets.close(fd)
  }
}

async function write(iptables: Iptables, batch: Batch, options?: RestoreOptions): Promise<void> {
  try {
    await iptables.restore(batch, options)
  } catch (error) {
    throw kernelError(error, 'mark answers to clients (xt_socket, xt_mark, xt_connmark)')
  }
}

/** The rules of our chains and of the built-in ones. A chain that does not exist is left out. */
type Chains = ReadonlyMap<string, readonly string[]>

/** Reads chain by chain, because to save a table the nft backend reads every rule of the node. */
async function readChains(iptables: Iptables): Promise<Chains> {
  const found = new Map<string, readonly string[]>()
  for (const name of hooks.flatMap(({ from, chain }) => [from, chain])) {
    const rules = await iptables.listChain('mangle', name)
    if (rules) found.set(name, rules)
  }
  return found
}

function rulesOver(present: Chains): Batch {
  const batch = new Batch()
  for (const { chain } of hooks) batch.chain('mangle', chain)
  for (const { from, chain, rules } of hooks) {
    for (const text of present.get(from) ?? []) {
      if (targetOf(text) === chain) batch.deleteSaved('mangle', from, text)
    }
    for (const one of rules) batch.append('mangle', chain, one)
  }
  for (const { table, chain, rule } of sourceJumps) batch.prepend(table, chain, rule)
  return batch
}

/** Imported late, because koffi does not load on every node. */
async function openRoutes(): Promise<Routes> {
  const { Routes } = await import('../../../kernel/routes.js')
  return new Routes()
}

function isWritten(present: Chains): boolean {
  return hooks.every(({ from, chain, rules }) => {
    const jumps = present.get(from)?.filter((text) => targetOf(text) === chain)
    const written = present.get(chain) ?? []
    const isSame = rules.every(({ text }, index) => isSameRule(written[index] ?? '', text))
    return jumps?.length === 1 && written.length === rules.length && isSame
  })
}

/**
 * Ends what the kernel keeps for a minute of connections that were made from addresses of clients.
 * Without the rules it drops packets between the same client port and the same endpoint, because
 * this node should forward them, and a socket of this node waits for them.
 */
async function forgetEndedSockets(family: IpFamily, routes: Pick<Routes, 'to'>): Promise<void> {
  const { ListedSockets, endedStates } = await import('../../../kernel/listed-sockets.js')
  const sockets = new ListedSockets('TCP')
  const isForeign = foreignTo(family, routes)
  try {
    for (const socket of await sockets.list(family, endedStates)) {
      if (!socket.isOpen && isForeign(socket)) sockets.destroy(socket)
    }
  } finally {
    sockets.close()
  }
}

/**
 * Whether a process has connections from addresses of clients. A socket whose address this node has
 * lost is not transparent.
 */
async function isInUse(family: IpFamily, routes: Pick<Routes, 'to'>): Promise<boolean> {
  const { ListedSockets, connectedStates } = await import('../../../kernel/listed-sockets.js')
  const sockets = new ListedSockets('TCP')
  const isForeign = foreignTo(family, routes)
  try {
    const all = await sockets.list(family, connectedStates)
    return all.some((one) => one.isOpen && one.isTransparent && isForeign(one))
  } finally {
    sockets.close()
  }
}

/** Whether a socket has an address that is not this node's. Asks for the route to each address once. */
function foreignTo(family: IpFamily, routes: Pick<Routes, 'to'>) {
  const foreign = new Map<string, boolean>()
  return ({ own }: ListedSocket): boolean => {
    const ip = addressText(family, own)
    const known = foreign.get(ip) ?? routes.to(ip)?.isLocal === false
    foreign.set(ip, known)
    return known
  }
}
