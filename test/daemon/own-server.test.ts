import t from 'tap'
import { ownServerWatch } from '../../lib/daemon/own-server.js'
import type { StateUpdate } from '../../lib/state/tracker.js'
import { service, states } from '../support/states.js'

t.test('an API server that is asked at a Service of this proxy is said once', async (t) => {
  const silent = () => undefined
  const warned = (server: string, clusterIp: string, port: number) => {
    const warnings: object[] = []
    const warn = (fields: object) => warnings.push(fields)
    const watch = ownServerWatch(server, { debug: silent, info: silent, error: silent, warn })
    const cluster = states()
    cluster.put(service({ name: 'kubernetes', clusterIp, port }))
    const update: Pick<StateUpdate, 'states'> = { states: [cluster.take()] }
    for (let number = 0; number < 2; number++) watch.started(update as StateUpdate)
    return warnings
  }
  t.match(warned('https://10.96.0.1', '10.96.0.1', 443), [{ service: /^default\/kubernetes/ }])
  t.equal(warned('https://10.96.0.1:443/', '10.96.0.1', 443).length, 1)
  t.equal(warned('http://10.96.0.1:8080', '10.96.0.1', 8080).length, 1)
  t.equal(warned('https://[fd00::1]', 'fd00::1', 443).length, 1)
  t.same(warned('https://10.96.0.1:6443', '10.96.0.1', 443), [], 'another port')
  t.same(warned('https://192.0.2.10', '10.96.0.1', 443), [], 'the server itself')
})
