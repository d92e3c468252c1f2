/** CVE-2020-8554: a Service takes the connections to somebody else's address if that is allowed. */
import t from 'tap'
import { runProxy } from '../support/program.js'
import { addressOf } from '../../lib/lab/world/topology.js'
import { rawService } from '../state/objects.js'
import {
  ask,
  clusterIp,
  skip,
  sliceOf,
  stopping,
  withProxyWorld,
  write,
} from '../e2e/proxy-world.js'
import { until } from '../support/until.js'

const victim = addressOf('outside', 'IPv4')
const port = 8080

/** A user who may create Services may write any address here. */
const thief = rawService({
  spec: {
    clusterIP: clusterIp,
    clusterIPs: [clusterIp],
    externalIPs: [victim],
    ports: [
      { name: 'http', protocol: 'TCP', port: 80, targetPort: 8080 },
      { name: 'stolen', protocol: 'TCP', port, targetPort: 8080 },
    ],
  },
})
const slice = sliceOf('pod-1')
const endpoints = {
  ...slice,
  ports: ['http', 'stolen'].map((name) => ({ name, protocol: 'TCP', port: 8080 })),
}

for (const mode of ['nftables', 'iptables', 'userspace'] as const) {
  t.test(`CVE-2020-8554: ${mode} mode, external IPs allowed and ignored`, { skip }, (t) =>
    withProxyWorld(`external-${mode}`, async ({ world, folder }) => {
      await write(folder, 'web.yaml', thief, endpoints)
      const reached = async (timeoutMs = 300_000) => {
        const request = { protocol: 'TCP', host: victim, port, timeoutMs } as const
        const [result] = await world.agent('client-pod').flow(request)
        return result?.backend ?? result?.outcome ?? 'nothing'
      }
      t.equal(await reached(), 'outside', 'a pod talks to a machine outside')
      for (const [allowed, answers, means] of [
        [true, 'pod-1', 'the default, as in kube-proxy: the Service answers instead'],
        [false, 'outside', 'the address stays with its owner'],
      ] as const) {
        const gate = `--feature-gates=AllowServiceExternalIPs=${allowed}`
        const flags = ['--proxy-mode', mode, '--proxy-mode-fallback=none', gate]
        const proxy = runProxy(world, [...flags, '--manifests', folder])
        await stopping(proxy, async () => {
          await until(`${mode} mode serves`, async () => (await ask(world)) === 'pod-1')
          await until(`${answers} answers`, async () => (await reached(10_000)) === answers)
          t.equal(await reached(), answers, means)
        })
      }
    }),
  )
}
