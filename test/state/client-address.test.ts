import t from 'tap'
import { parseService } from '../../lib/state/parse-service.js'
import { rawService } from './objects.js'

t.test('US80: words of the annotations about the client are checked', (t) => {
  const warningsOf = (annotations: object) => {
    const parsed = parseService(rawService({ annotations }))
    return parsed.outcome === 'accepted' ? parsed.warnings : [parsed.outcome]
  }
  for (const word of ['v1', 'v2']) t.same(warningsOf({ 'kube-proxy-ts/proxy-protocol': word }), [])
  t.same(warningsOf({ 'kube-proxy-ts/proxy-protocol': 'on\n' }), [
    'annotation kube-proxy-ts/proxy-protocol: "on\\n" has no effect; valid: v1, v2',
  ])
  t.end()
})
