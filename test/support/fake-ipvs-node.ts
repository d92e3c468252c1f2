import { KernelError } from '../../lib/errors.js'
import { IpSets } from '../../lib/kernel/ipset.js'
import type { MemberChange } from '../../lib/kernel/ipset-members.js'
import { parseSaved as parseTables, type Iptables } from '../../lib/kernel/iptables.js'
import { IpvsApplier, type ApplierDeps } from '../../lib/modes/ipvs/apply.js'
import { Rules } from '../../lib/modes/ipvs/rules.js'
import type { IpFamily } from '../../lib/state/ip.js'
import { FakeIpvsKernel } from './fake-ipvs-kernel.js'
import { openEdge } from './ipvs-behaviour.js'

/** `ipset restore`, `ipset save`, and members by netlink, in memory. */
export class FakeIpSets {
  readonly sets = new Map<string, { header: string; members: Set<string> }>()
  /** Sets that rules use, so that they cannot be destroyed. */
  readonly used = new Set<string>()
  /** The inputs of `ipset restore`. */
  readonly restores: string[] = []

  readonly tool = new IpSets((_file, args, options) => {
    const [verb] = args
    try {
      const stdout = verb === 'restore' ? this.#restore(String(options?.stdin)) : this.save()
      return Promise.resolve({
        code: 0,
        stdout: verb === '--version' ? 'ipset v7.17' : stdout,
        stderr: '',
      })
    } catch (error) {
      return Promise.resolve({ code: 1, stdout: '', stderr: (error as Error).message })
    }
  })

  /** Members that were changed without the program. */
  readonly changed: MemberChange[] = []

  change(changes: readonly MemberChange[]): Promise<number> {
    for (const { do: verb, set, member } of changes) {
      const { members } = this.sets.get(set) ?? {}
      if (!members) throw new KernelError('not-found', `no ipset ${set}`)
      if (verb === 'add') members.add(member)
      else members.delete(member)
    }
    this.changed.push(...changes)
    return Promise.resolve(changes.length)
  }

  save(): string {
    return Array.from(this.sets, ([name, { header, members }]) =>
      [
        `create ${name} ${header}`,
        ...Array.from(members, (member) => `add ${name} ${member}`),
      ].join('\n'),
    ).join('\n')
  }

  members(name: string): readonly string[] {
    return [...(this.sets.get(name)?.members ?? [])].sort()
  }

  #restore(input: string): string {
    const text = input.replace(/,(6|17|132):/g, (_, number: string) => `,${protocols[number]}:`)
    this.restores.push(text)
    for (const line of text.trim().split('\n')) {
      const [verb, name = '', third = '', ...rest] = line.replace(' -exist', '').split(' ')
      const set = this.sets.get(name)
      if (verb === 'create') this.#create(name, [third, ...rest].join(' '))
      else if (!set) throw new Error(`The set with the given name does not exist: ${name}`)
      else if (verb === 'add') set.members.add(third)
      else if (verb === 'del') set.members.delete(third)
      else if (verb === 'destroy') this.#destroy(name)
      else if (verb === 'swap') {
        const other = this.sets.get(third)!
        if (kindOf(set) !== kindOf(other)) throw new Error('their type does not match')
        this.sets.set(name, other)
        this.sets.set(third, set)
      }
    }
    return ''
  }

  #destroy(name: string): void {
    if (this.used.has(name)) throw new Error('Set cannot be destroyed: it is in use by a kernel')
    this.sets.delete(name)
  }

  #create(name: string, header: string): void {
    const present = this.sets.get(name)
    if (!present) this.sets.set(name, { header, members: new Set() })
    else if (present.header !== header) throw new Error('set with the same name already exists')
  }
}

/** As /etc/protocols has them. */
const protocols: Readonly<Record<string, string>> = { 6: 'tcp', 17: 'udp', 132: 'sctp' }

/** The kernel exchanges only sets of the same type and family. */
const kindOf = ({ header }: { readonly header: string }) => /^\S+ family \w+/.exec(header)?.[0]

const builtIn = new Set(['PREROUTING', 'INPUT', 'FORWARD', 'OUTPUT', 'POSTROUTING'])

/** The needed part of iptables-save and iptables-restore --noflush. */
export class FakeTables {
  readonly tables = new Map<string, Map<string, string[]>>()
  restores = 0

  readonly tool: Pick<Iptables, 'save' | 'restore' | 'hasAny' | 'supports'> = {
    supports: () => Promise.resolve(true),
    save: () => Promise.resolve(parseTables(this.text())),
    restore: (batch) => {
      this.#restore(batch.toString())
      return Promise.resolve()
    },
    hasAny: (chains) =>
      Promise.resolve(chains.some(([table, chain]) => this.tables.get(table)?.has(chain))),
  }

  text(): string {
    return Array.from(this.tables, ([table, chains]) =>
      [
        `*${table}`,
        ...Array.from(
          chains.keys(),
          (chain) => `:${chain} ${builtIn.has(chain) ? 'ACCEPT' : '-'} [0:0]`,
        ),
        ...Array.from(chains, ([chain, rules]) =>
          rules.map((rule) => `-A ${chain} ${rule}`),
        ).flat(),
        'COMMIT',
      ].join('\n'),
    ).join('\n')
  }

  #restore(text: string): void {
    this.restores++
    let chains = new Map<string, string[]>()
    for (const line of text.split('\n')) {
      const [, verb, chain = '', rule = ''] = /^(\*|:|-[AIDX] )(\S+) ?(.*)$/.exec(line) ?? []
      const rules = chains.get(chain) ?? []
      if (verb === '*') {
        chains = this.tables.get(chain) ?? new Map<string, string[]>()
        this.tables.set(chain, chains)
      } else if (verb === ':') chains.set(chain, [])
      else if (verb === '-X ') {
        const jumps = [...chains.values()].flat().map((text) => ` ${text} `)
        if (jumps.some((text) => text.includes(` -j ${chain} `))) {
          throw new KernelError('failed', `${chain} is in use`)
        }
        chains.delete(chain)
      } else if (verb === '-A ') chains.set(chain, [...rules, rule])
      else if (verb === '-I ') chains.set(chain, [rule, ...rules])
      else if (verb === '-D ') {
        if (!rules.includes(rule)) throw new KernelError('not-found', `no rule ${rule}`)
        chains.set(chain, rules.toSpliced(rules.indexOf(rule), 1))
      }
    }
  }
}

/** A node for ipvs mode without any kernel. */
export class FakeNode {
  readonly kernel = new FakeIpvsKernel()
  readonly sets = new FakeIpSets()
  readonly tables: Readonly<Record<IpFamily, FakeTables>> = {
    IPv4: new FakeTables(),
    IPv6: new FakeTables(),
  }
  readonly resyncs: string[] = []
  readonly warnings: object[] = []
  /** By name and labels, as on the page of metrics. */
  readonly gauges = new Map<string, number>()
  now = 0
  readonly edge = openEdge(this.kernel)
  readonly rules = new Rules((family) => Promise.resolve(this.tables[family].tool))

  /** An applier of the mode. A second one plays the mode after a restart. */
  applier(
    more: Partial<ApplierDeps> = {},
    settings: Partial<ReturnType<ApplierDeps['settings']>> = {},
  ): IpvsApplier {
    const nothing = () => undefined
    return new IpvsApplier({
      ...this.edge,
      tables: this.edge.ipvs,
      sets: this.sets.tool,
      members: this.sets,
      rules: this.rules,
      context: {
        log: {
          debug: nothing,
          info: nothing,
          error: nothing,
          warn: (fields) => void this.warnings.push(fields),
        },
        meter: {
          count: nothing,
          observe: nothing,
          forget: nothing,
          gauge: (name, labels, value) =>
            void this.gauges.set(`${name} ${JSON.stringify(labels)}`, value),
        },
        resync: (reason) => void this.resyncs.push(reason),
      },
      now: () => this.now,
      settings: () => ({ gracePeriodMs: 0, excluded: [], verifyMs: 1000, ...settings }),
      sweepMs: 1000,
      ...more,
    })
  }

  /** Returns the changes since the last call. */
  takeChanges(): readonly string[] {
    return this.kernel.changes.splice(0)
  }

  /** `10.96.0.10:80/TCP rr: 10.180.0.1:8080*1` for each server of IPv4, sorted. */
  async servers(): Promise<readonly string[]> {
    const lines: string[] = []
    for (const server of await this.edge.ipvs.listServers('IPv4')) {
      const reals = await this.edge.ipvs.listRealServers(server)
      const texts = reals.map(({ ip, port, weight }) => `${ip}:${port}*${weight}`).sort()
      const { ip, port, protocol, scheduler } = server
      lines.push(`${ip}:${port}/${protocol} ${scheduler}: ${texts.join(' ')}`.trim())
    }
    return lines.sort()
  }
}
