/** A limit of IPVS itself, shown without this program; docs/ipvs.md explains it to users. */
import t from 'tap'
import { createWorld } from '../../../lib/lab/world/world.js'

await t.test('one client port for two Services of one real server confuses IPVS', async (t) => {
  const world = await createWorld({ name: 'oneport' })
  t.teardown(() => world.close())
  const { code, stderr } = await world.exec('node', [
    'sh',
    '-c',
    `modprobe ip_vs && sysctl -qw net.ipv4.vs.conntrack=1 && ip link add vips type dummy
    for ip in 10.96.1.1 10.96.1.2; do
      ip address add $ip/32 dev vips
      ipvsadm -A -t $ip:80 -s rr && ipvsadm -a -t $ip:80 -r 10.244.1.21:8080 -m
    done`,
  ])
  t.equal(code, 0, stderr)
  const client = world.agent('client-pod')
  const timeoutMs = 600_000
  const open = async (host: string, fromPort: number, keepAs: string) => {
    const request = { protocol: 'TCP', host, port: 80, fromPort, keepAs, timeoutMs } as const
    return (await client.flow(request))[0]?.outcome
  }
  const outcome = async (id: string, patienceMs = timeoutMs) =>
    (await client.send(id, patienceMs)).outcome
  t.equal(await open('10.96.1.1', 41_000, 'one'), 'reply')
  t.equal(await open('10.96.1.2', 41_001, 'two'), 'reply')
  t.equal(await outcome('one'), 'reply', 'with a port each both live')
  t.equal(await outcome('two'), 'reply')
  t.equal(await open('10.96.1.1', 42_000, 'older'), 'reply')
  t.equal(await open('10.96.1.2', 42_000, 'newer'), 'reply')
  t.equal(await outcome('newer'), 'reply')
  t.equal(await outcome('older', 2000), 'dropped', 'its answers carry the address of the newer')
})
