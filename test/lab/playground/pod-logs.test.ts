import t from 'tap'
import { PodLogs } from '../../../lib/lab/playground/pod-logs.js'

const pod = {
  ...{ apiVersion: 'v1', kind: 'Pod' },
  metadata: { name: 'web-1', uid: '1', resourceVersion: '1', creationTimestamp: '' },
}
const [source, at, protocol] = ['10.244.1.10:40000', '10.244.1.21:80', 'TCP'] as const

t.test('a pod prints the requests that it has answered, the newest of them', (t) => {
  const logs = new PodLogs(() => new Date(0))
  logs.started('web-1', [80])
  logs.answered('web-1', [{ source, at, protocol, line: '' }])
  t.same(logs.lines(pod), [
    '1970-01-01T00:00:00.000Z listens on 80',
    '1970-01-01T00:00:00.000Z answered 10.244.1.10:40000 at 10.244.1.21:80/TCP',
  ])
  for (let number = 0; number < 1500; number++) {
    logs.answered('web-1', [{ source, at, protocol, line: `GET /${number} HTTP/1.1` }])
  }
  const lines = logs.lines(pod)
  t.equal(lines.length, 1000)
  t.match(lines[0], /"GET \/500 HTTP\/1\.1"$/)
  t.end()
})

t.test('what a client sends cannot move the cursor of a terminal', (t) => {
  const logs = new PodLogs(() => new Date(0))
  const line = 'GET /\u001b[2J\u009b\u0007"\\\u00e9 HTTP/1.1'
  logs.answered('web-1', [{ source, at, protocol, line }])
  t.equal(logs.lines(pod)[0]?.split('TCP ')[1], String.raw`"GET /\x1b[2J\x9b\x07\"\\\xe9 HTTP/1.1"`)
  t.end()
})
