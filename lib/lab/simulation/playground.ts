import { LivePlayground } from '../playground/live-playground.js'
import { SimulatedCluster } from './cluster.js'

/** The playground over a simulated cluster; it runs until the signal. */
export function simulatedPlayground(signal: AbortSignal): LivePlayground {
  const cluster = new SimulatedCluster({ now: () => performance.now(), random: Math.random })
  const playground = new LivePlayground(cluster, {
    modes: ['userspace', 'iptables', 'ipvs', 'nftables', 'ebpf'],
    where: 'simulated in your browser: nothing is installed, and nothing is sent',
  })
  void cluster.run(signal)
  void playground.run(signal)
  return playground
}
