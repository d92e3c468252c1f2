import { mkdirSync } from 'node:fs'
import type { World } from '../../lib/lab/world/world.js'
import { parseIp } from '../../lib/state/ip.js'
import type { RunningCommand, System } from '../conformance/daemon-subject.js'
import type { Manifest } from '../conformance/objects.js'
import { inRoom, Started } from './subjects.js'

const lookEveryMs = 20

/**
 * The Windows build of the command, under Wine, on the node of a world. Wine cannot change
 * addresses. So they are on the node before the command hears of a Service, and go after it hears
 * of its end.
 */
export class WineSystem implements System {
  readonly name = 'Windows'
  readonly lastFamily = 'IPv4'
  #folders = 0
  readonly #addresses = new Set<string>()

  addFolder() {
    const there = `/tmp/conformance-${++this.#folders}`
    const here = inRoom(there)
    mkdirSync(here)
    return { here, there }
  }

  start(
    world: World,
    flags: readonly string[],
    hear: (line: string) => void,
  ): Promise<RunningCommand> {
    const onNode = ['nsenter', `--net=/run/netns/${world.namespaces.node}`, '--']
    const started = new Started('Windows', 'cli/main.js', flags, onNode)
    let heard = 0
    const listening = setInterval(() => {
      const lines = started.output.split('\n').slice(0, -1)
      for (const line of lines.slice(heard)) hear(line)
      heard = lines.length
    }, lookEveryMs)
    return Promise.resolve({
      get hasEnded() {
        return started.hasEnded
      },
      end: async () => {
        clearInterval(listening)
        started.interrupt()
        await started.ended()
      },
    })
  }

  async prepare(world: World, objects: readonly Manifest[]): Promise<void> {
    const missing = [...addressesOf(objects)].filter((ip) => !this.#addresses.has(ip))
    await change(world, 'add', missing)
    for (const ip of missing) this.#addresses.add(ip)
  }

  async tidy(world: World, objects: readonly Manifest[]): Promise<void> {
    const wanted = addressesOf(objects)
    const unused = [...this.#addresses].filter((ip) => !wanted.has(ip))
    await change(world, 'delete', unused)
    for (const ip of unused) this.#addresses.delete(ip)
  }
}

async function change(world: World, verb: 'add' | 'delete', ips: readonly string[]) {
  if (ips.length === 0) return
  const lines = ips.map((ip) => `address ${verb} ${ip} dev lo`)
  const result = await world.exec('node', ['ip', '-batch', '-'], { stdin: lines.join('\n') })
  if (result.code !== 0) throw new Error(`${verb} addresses of Services: ${result.stderr}`)
}

/** The IPv4 addresses of all Services. */
function addressesOf(objects: readonly Manifest[]): ReadonlySet<string> {
  const all = objects
    .filter(isService)
    .flatMap(({ spec, status }) => [
      ...(spec.clusterIPs ?? []),
      ...(spec.externalIPs ?? []),
      ...status.loadBalancer.ingress.flatMap(({ ip }) => ip ?? []),
    ])
  const ips = all.flatMap((text) => parseIp(text) ?? [])
  return new Set(ips.filter(({ family }) => family === 'IPv4').map(({ text }) => text))
}

function isService(manifest: Manifest): manifest is Manifest & ServiceShape {
  return manifest.kind === 'Service'
}

/** The part that serviceManifest always writes. */
interface ServiceShape {
  readonly spec: {
    readonly clusterIPs?: readonly string[]
    readonly externalIPs?: readonly string[]
  }
  readonly status: {
    readonly loadBalancer: { readonly ingress: readonly { readonly ip?: string }[] }
  }
}
