import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { writeKubeconfig } from '../../lib/lab/apiserver/kubeconfig.js'
import { openBridge } from '../../lib/lab/world/bridge.js'
import { addressOf, bridgeName } from '../../lib/lab/world/topology.js'
import { quoted } from '../../test/support/guest.js'
import { program } from '../../test/support/program.js'
import { runInUml } from '../../test/support/uml.js'
import { answers, inCluster, nodeName } from './bench-cluster.js'
import { busy, type BusyCosts } from './busy-cluster.js'

const device = 'guest0'
const outer = '192.168.77.1'
const port = 6443

interface GuestTask {
  readonly services: number
  readonly seconds: number
  /** Before that. The first changes meet a program that V8 has not compiled yet. */
  readonly warmSeconds: number
}

/**
 * Runs the program in ipvs mode on a node that is a User Mode Linux, and keeps 20 slices a second
 * changing. API server, clients and pods are outside, so the slow system calls of the guest are
 * those of the node alone. A text says why it failed.
 */
export function busyGuest(task: GuestTask): Promise<BusyCosts | string> {
  const { services, seconds, warmSeconds } = task
  return inCluster(services, async (cluster) => {
    const { world } = cluster
    const scratch = mkdtempSync(join(tmpdir(), 'bench-guest-'))
    const stop = join(scratch, 'stop')
    const kubeconfig = join(scratch, 'kubeconfig')
    await writeKubeconfig(kubeconfig, { url: `http://localhost:${port}` })
    // The namespace of the node is only a switch now; the guest has the address of the gateway.
    for (const words of [
      `address flush dev ${bridgeName}`,
      `address add ${outer}/24 dev ${bridgeName}`,
      `tuntap add ${device} mode tap`,
      `link set ${device} master ${bridgeName} up`,
    ]) {
      const { code, stderr } = await world.exec('node', ['ip', ...words.split(' ')])
      if (code !== 0) throw new Error(`ip ${words}: ${stderr.trim()}`)
    }
    const { node: namespace } = world.namespaces
    const bridge = await openBridge({ namespace, from: { host: outer, port }, to: { port } })
    const said: string[] = []
    let isAlive = true
    const guest = runInUml(insideOf(kubeconfig, stop), {
      memory: '2G',
      timeoutMs: (warmSeconds + seconds + 180) * 1000,
      network: { namespace, device },
      onLine: (line) => said.push(line),
    })
      .catch((error: unknown) => said.push(String(error)))
      .finally(() => (isAlive = false))
    try {
      const running = { pid: process.pid, isAlive: () => isAlive }
      if (!(await answers(world, 'pod-1', running.isAlive))) return said.slice(-5).join('\n')
      const changes = { services, perSecond: 20, restMs: 200 }
      const warm = await busy(cluster, running, { ...changes, seconds: warmSeconds })
      return typeof warm === 'string' ? warm : await busy(cluster, running, { ...changes, seconds })
    } finally {
      writeFileSync(stop, '')
      await guest
      await bridge.close()
      rmSync(scratch, { recursive: true, force: true })
    }
  })
}

/** The commands of the guest. Its only name for the API server is one that the server takes. */
function insideOf(kubeconfig: string, stop: string): string {
  const proxy = [
    ...[process.execPath, program, '--kubeconfig', kubeconfig, '--hostname-override', nodeName],
    ...['--proxy-mode', 'ipvs', '--proxy-mode-fallback', 'none', '--cluster-cidr', '10.244.0.0/16'],
  ]
  return `
    echo '${outer} localhost' >/run/hosts && mount --bind /run/hosts /etc/hosts
    ip link set vec0 up
    ip address add ${addressOf('node', 'IPv4', 2)}/24 dev vec0
    ip address add ${addressOf('node', 'IPv4')}/32 dev vec0
    ip address add 192.168.77.2/24 dev vec0
    sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.send_redirects=0
    sysctl -qw net.ipv4.conf.vec0.send_redirects=0
    ${proxy.map(quoted).join(' ')} &
    while [ ! -e ${quoted(stop)} ]; do sleep 0.5; done`
}
