/** `trace` in ipvs mode, in a kernel with IPVS, with rules of iptables-legacy. Prints TAP. */
import t from 'tap'
import {
  ask,
  clusterIp,
  service,
  sliceOf,
  stopping,
  withProxyWorld,
  write,
} from '../../e2e/proxy-world.js'
import { runProxy } from '../../support/program.js'
import { traced } from '../../support/traced.js'
import { until } from '../../support/until.js'

await t.test('trace follows a connection to the endpoint that IPVS chose', (t) =>
  withProxyWorld('trace-ipvs', async ({ world, folder }) => {
    await write(folder, 'web.yaml', service, sliceOf('pod-1'))
    const proxy = runProxy(world, ['--proxy-mode', 'ipvs', '--manifests', folder])
    await stopping(proxy, async () => {
      await until('the Service answers', async () => (await ask(world)) === 'pod-1')
      const before = await world.exec('node', ['iptables-save', '-t', 'raw'])
      const story = await traced(world)
      t.match(story.from, /^10\.244\.1\.10:\d+$/)
      t.equal(story.to, `${clusterIp}:80`)
      t.equal(story.inInterface, 'cbr0')
      t.equal(story.end, 'sent')
      const rules = story.hops.map(({ where, rule }) => `${where}: ${rule}`).join('\n')
      t.match(rules, /ip nat KUBE-SERVICES: .*--match-set KUBE-CLUSTER-IP dst,dst/)
      t.match(rules, /ip filter KUBE-PROXY-FIREWALL|ip filter INPUT|ip filter KUBE-/)
      t.match(
        story.afterwards[0],
        /^IPVS sent it to 10\.244\.1\.21:8080; the state of the connection is /,
      )
      t.match(story.afterwards[1], /expects the answer from 10\.244\.1\.21:8080/)
      t.comment(`${rules}\n${story.destination}\n${story.afterwards.join('\n')}`)
      const after = await world.exec('node', ['iptables-save', '-t', 'raw'])
      t.equal(after.stdout.match(/^-A.*/gm), before.stdout.match(/^-A.*/gm), 'nothing stays')
    })
  }),
)
