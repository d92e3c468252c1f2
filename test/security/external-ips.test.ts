import t from 'tap'
import { parseFlags } from '../../lib/config/flags.js'
import { loadConfig } from '../../lib/config/load.js'
import { trackerSettings } from '../../lib/config/tracker-settings.js'
import { modeLoaders } from '../../lib/modes/registry.js'
import { service, states, testConfig } from '../support/states.js'
import { walkOf } from '../support/walks.js'

const external = '198.51.100.7'
const web = service({ externalIps: [external], endpoints: 2 })

/** The setting for external IPs that these flags make. */
function settingsOf(...flags: readonly (readonly [string, string])[]) {
  const { config } = loadConfig(parseFlags(flags), undefined)
  const { allowsExternalIps } = trackerSettings(config, 'nftables', {
    nodeName: 'node-1',
    families: ['IPv4'],
  })
  return { allowsExternalIps }
}

for (const mode of ['userspace', 'iptables', 'ipvs', 'nftables', 'ebpf'] as const) {
  t.test(`S09, CVE-2020-8554: ${mode} mode ignores external IPs if told so`, async (t) => {
    const definition = await modeLoaders[mode]()
    const rendered = (settings: { allowsExternalIps: boolean }) => {
      const planner = definition.planner(testConfig)
      return planner.render(planner.plan(states('IPv4', settings).put(web).take()))
    }
    t.match(rendered(settingsOf()), external, 'served by default, as in kube-proxy 1.36')
    const off = rendered(settingsOf(['feature-gates', 'AllowServiceExternalIPs=false']))
    t.notMatch(off, external)
    t.match(off, web.clusterIp, 'the rest of the Service is served')
  })

  t.test(
    `CVE-2020-8554: in ${mode} mode an external IP cannot take over a ClusterIP`,
    async (t) => {
      const at = (ip: string) => [{ ip, local: true }]
      const victim = service({ name: 'web', endpoints: at('10.180.0.1') })
      const thieves = ['a-thief', 'z-thief'].map((name, index) =>
        service({
          name,
          clusterIp: `10.96.0.6${index}`,
          externalIps: [victim.clusterIp, external],
          loadBalancerIps: [victim.clusterIp],
          endpoints: at('10.180.0.66'),
        }),
      )
      const before = walkOf(mode, states().put(victim).take())
      const state = states()
        .put(...thieves, victim)
        .take()
      const after = walkOf(mode, state)
      const target = `${victim.clusterIp}:80`
      for (const from of ['pod', 'node', 'outside'])
        t.equal(after(from, target), before(from, target))
      t.notMatch(after('pod', `${external}:80`), 'untouched', "what is nobody else's is served")
    },
  )
}
