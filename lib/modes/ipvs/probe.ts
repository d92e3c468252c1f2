import { KernelError, messageOf } from '../../errors.js'
import { runCommand, type Run } from '../../kernel/command.js'
import { Iptables } from '../../kernel/iptables.js'
import { IpSets } from '../../kernel/ipset.js'
import { Ipvs, type VirtualServer } from '../../kernel/ipvs.js'
import { Links } from '../../kernel/links.js'
import { attempt } from '../findings.js'
import type { Finding, Log } from '../mode.js'
import type { IpFamily } from '../../state/ip.js'
import { waitToProbe } from '../xtables-lock.js'
import { deviceName } from './names.js'

interface ProbeDeps {
  readonly run: Run
  readonly openIpvs: () => Ipvs
  readonly openLinks: () => Links
  readonly sets: Pick<IpSets, 'version' | 'list'>
  readonly checkIptables: (family: IpFamily, log: Log) => Promise<void>
}

export const probeDefaults: ProbeDeps = {
  run: runCommand,
  openIpvs: () => Ipvs.open(),
  openLinks: () => new Links(),
  sets: new IpSets(),
  checkIptables: async (family, log) =>
    (await Iptables.open({ family, onLocked: waitToProbe(log) })).check(),
}

const kernelHint =
  'modprobe ip_vs; if there is none, install the package with your kernel’s modules, or use a kernel with CONFIG_IP_VS'

/** A virtual server at an address for documentation, which no Service has (IP31). */
const trial: VirtualServer = {
  family: 'IPv4',
  protocol: 'TCP',
  ip: '198.51.100.0',
  port: 20000,
  scheduler: 'rr',
  schedulerFlags: 0,
  persistenceSeconds: 0,
}

/**
 * IP31: finds out whether this node has what the mode needs. It tries everything, and undoes it.
 */
export async function probeIpvs(
  log: Log,
  deps: ProbeDeps = probeDefaults,
  scheduler = 'rr',
): Promise<readonly Finding[]> {
  const need = (what: string, fix: string, work: () => Promise<string>) =>
    attempt({ what, required: true, fix }, work)
  const module = await need('kernel module ip_vs', kernelHint, async () => {
    const ipvs = await openLoaded(deps)
    ipvs.close()
    return 'answers on generic netlink'
  })
  const tools = [
    await need('ipset and kernel module ip_set', 'apt-get install ipset; modprobe ip_set', () =>
      deps.sets.list().then(() => deps.sets.version()),
    ),
    await need('dummy network devices', 'modprobe dummy', () => tryDummy(deps)),
    await need('iptables with table nat', 'apt-get install iptables; modprobe ip_tables', () =>
      deps.checkIptables('IPv4', log).then(() => 'readable'),
    ),
    await attempt(
      { what: 'ip6tables with table nat', required: false, fix: 'modprobe ip6_tables' },
      () => deps.checkIptables('IPv6', log).then(() => 'readable'),
    ),
  ]
  if (!module.ok) return [module, ...tools]
  const fix = `modprobe ip_vs_${scheduler}, or choose another --ipvs-scheduler`
  const chosen = await need(`scheduler ${scheduler}`, fix, () => tryScheduler(deps, scheduler))
  return [module, chosen, ...tools]
}

/** Opens IPVS. It loads the module if it is missing and may be loaded. */
export async function openLoaded(deps: Pick<ProbeDeps, 'run' | 'openIpvs'>): Promise<Ipvs> {
  try {
    return deps.openIpvs()
  } catch (error) {
    if (!(error instanceof KernelError) || error.kind !== 'not-found') throw error
    const loaded = await deps.run('modprobe', ['ip_vs']).catch((cause: unknown) => ({
      code: 1,
      stderr: messageOf(cause),
    }))
    if (loaded.code === 0) return deps.openIpvs()
    const why = loaded.stderr.trim().replace(/^(modprobe: )?FATAL: /, '')
    throw new KernelError('unsupported', `not in this kernel (modprobe: ${why})`, { cause: error })
  }
}

async function tryScheduler(deps: ProbeDeps, scheduler: string): Promise<string> {
  const ipvs = deps.openIpvs()
  try {
    const server = { ...trial, scheduler }
    const [failure] = await ipvs.change([{ do: 'add-server', server }])
    if (failure && failure.error.kind !== 'exists') throw failure.error
    await ipvs.change([{ do: 'delete-server', server }])
    return 'a virtual server was made and removed'
  } finally {
    ipvs.close()
  }
}

function tryDummy(deps: ProbeDeps): Promise<string> {
  const links = deps.openLinks()
  try {
    if (links.find(deviceName) !== undefined) return Promise.resolve(`${deviceName} exists`)
    links.ensureDummy(deviceName)
    links.remove(deviceName)
    return Promise.resolve('one was made and removed')
  } finally {
    links.close()
  }
}
