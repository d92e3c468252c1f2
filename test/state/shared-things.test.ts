import t from 'tap'
import { service, states, type ServiceSpec } from '../support/states.js'
import { workOf } from '../support/work.js'

/** Twice as many Services cost a start twice as much, also if they have something in common. */

const counts = [300, 600] as const

function startOf(count: number, spec: (index: number) => Partial<ServiceSpec>): number {
  const cluster = states('IPv4', { translatesOnce: true })
  const services = Array.from({ length: count }, (_, index) =>
    service({
      name: `web-${index}`,
      clusterIp: `10.96.${index >> 8}.${index & 255}`,
      port: 1000 + index,
      endpoints: 1,
      ...spec(index),
    }),
  )
  return workOf(() => cluster.put(...services).take())
}

const shapes: Readonly<Record<string, (index: number) => Partial<ServiceSpec>>> = {
  'have health-check node ports': (index) => ({
    externalPolicyLocal: true,
    nodePort: 20_000 + index,
    healthCheckNodePort: 30_000 + index,
  }),
  'share the address of a load balancer': () => ({ loadBalancerIps: ['203.0.113.1'] }),
  'share an endpoint': () => ({ endpoints: [{ ip: '10.180.0.1', port: 8080 }] }),
}

for (const [what, spec] of Object.entries(shapes)) {
  t.test(`the work of a start grows with the number of Services that ${what}`, async (t) => {
    const [few, many] = counts.map((count) => startOf(count, spec)) as [number, number]
    t.ok(many < 2.2 * few, `${few} steps, then ${many}`)
  })
}
