import { KernelError } from '../../lib/errors.js'
import type { DeviceLinks } from '../../lib/kernel/device-addresses.js'

export const lo = 1
export const dummy = 7

/** Devices in memory, with their addresses and the metric of each. */
export class FakeLinks implements DeviceLinks {
  readonly on = new Map([[lo, new Map<string, number>()]])
  canMakeDummy = true
  find = (name: string) => (name === 'lo' ? lo : this.on.has(dummy) ? dummy : undefined)
  ensureDummy = () => {
    if (!this.canMakeDummy) {
      throw new KernelError('unsupported', 'create dummy device: unknown device type')
    }
    if (!this.on.has(dummy)) this.on.set(dummy, new Map())
    return dummy
  }
  remove = () => this.on.delete(dummy)
  addresses = (
    _family: string,
    { on, metric }: { readonly on?: number; readonly metric?: number } = {},
  ) => {
    if (on === undefined) {
      return Promise.resolve([
        '192.0.2.1',
        ...[...this.on.values()].flatMap((ips) =>
          [...ips.keys()].map((ip) => ip.split('/')[0] ?? ip),
        ),
      ])
    }
    const all = [...(this.on.get(on) ?? [])]
    const wanted = all.filter(([, mark]) => metric === undefined || metric === mark)
    return Promise.resolve(wanted.map(([ip]) => ip))
  }
  addAddresses = (_family: string, index: number, ips: readonly string[], metric = 0) => {
    const denied = (ip: string) => ({ ip, error: new KernelError('denied', `add ${ip}: EPERM`) })
    for (const ip of ips) if (!ip.startsWith('203.')) this.on.get(index)?.set(ip, metric)
    return Promise.resolve(ips.filter((ip) => ip.startsWith('203.')).map(denied))
  }
  deleteAddresses = (_family: string, index: number, ips: readonly string[]) => {
    for (const ip of ips) this.on.get(index)?.delete(ip)
    return Promise.resolve([])
  }
  close = () => undefined
  listed = (index: number) => [...(this.on.get(index)?.keys() ?? [])]
}
