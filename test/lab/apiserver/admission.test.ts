import t, { type Test } from 'tap'
import { createApiServer } from '../../../lib/lab/apiserver/server.js'
import { sendRaw } from '../../support/raw-http.js'

async function serving(t: Test, host = '127.0.0.1'): Promise<number> {
  const api = createApiServer({ runtime: undefined, host })
  const stop = new AbortController()
  const running = api.run(stop.signal)
  t.teardown(async () => {
    stop.abort()
    await running
  })
  return Number(new URL(await api.listening()).port)
}

const services = '/api/v1/namespaces/default/services'

async function statusOf(port: number, ...lines: readonly string[]): Promise<number | undefined> {
  const { statuses } = await sendRaw(port, [...lines, 'Connection: close', '', ''].join('\r\n'))
  return statuses[0]
}

void t.test('a path that is no URL gets an answer, and the server goes on', async (t) => {
  const port = await serving(t)
  for (const [target, status] of [
    ['//', 404],
    ['///', 404],
    ['//[', 404],
    ['/%zz', 404],
    ['http://[', 400],
    ['*', 400],
    ['//x/api/v1', 404],
  ] as const) {
    const method = target === '*' ? 'OPTIONS' : 'GET'
    t.equal(await statusOf(port, `${method} ${target} HTTP/1.1`, 'Host: localhost'), status, target)
  }
  t.equal(await statusOf(port, 'GET /healthz HTTP/1.1', 'Host: localhost'), 200)
})

void t.test('only names of this machine are accepted as Host', async (t) => {
  const port = await serving(t)
  for (const [host, status] of [
    [`localhost:${port}`, 200],
    ['LOCALHOST', 200],
    ['127.0.0.1', 200],
    ['127.9.9.9:1', 200],
    ['[::1]:8001', 200],
    ['', 403],
    ['evil.example', 403],
    [`evil.example:${port}`, 403],
    ['localhost.evil.example', 403],
    ['127.0.0.1.evil.example', 403],
    ['192.0.2.1', 403],
    ['[::1', 403],
    ['localhost@evil.example', 403],
  ] as const) {
    t.equal(await statusOf(port, `GET ${services} HTTP/1.1`, `Host: ${host}`), status, host)
  }
  const everywhere = await serving(t, '0.0.0.0')
  t.equal(await statusOf(everywhere, `GET ${services} HTTP/1.1`, 'Host: 192.0.2.1'), 200)
  t.equal(await statusOf(everywhere, `GET ${services} HTTP/1.1`, 'Host: evil.example'), 403)
})

void t.test('pages of other sites can neither read nor write', async (t) => {
  const port = await serving(t)
  const own = `localhost:${port}`
  for (const [header, status] of [
    [`Origin: http://${own}`, 200],
    ['Origin: http://evil.example', 403],
    ['Origin: null', 403],
    ['Origin: http://localhost:1', 403],
    ['Sec-Fetch-Site: cross-site', 403],
    ['Sec-Fetch-Site: same-site', 403],
    ['Sec-Fetch-Site: same-origin', 200],
    ['Sec-Fetch-Site: none', 200],
  ] as const) {
    t.equal(
      await statusOf(port, `GET ${services} HTTP/1.1`, `Host: ${own}`, header),
      status,
      header,
    )
  }
})

void t.test('bodies are JSON, YAML or protobuf, and no type that a form can send', async (t) => {
  const port = await serving(t)
  const object = (name: string) =>
    JSON.stringify({
      apiVersion: 'v1',
      kind: 'Service',
      metadata: { name },
      spec: { ports: [{ port: 80 }] },
    })
  for (const [index, [type, status]] of (
    [
      ['application/json', 201],
      ['application/json; charset=utf-8', 201],
      ['application/yaml', 201],
      ['text/plain', 415],
      ['text/plain; application/json', 415],
      ['application/x-www-form-urlencoded', 415],
      ['multipart/form-data; boundary=x', 415],
      ['application/cbor', 415],
      ['', 415],
    ] as const
  ).entries()) {
    const response = await fetch(`http://127.0.0.1:${port}${services}`, {
      method: 'POST',
      headers: { 'content-type': type },
      body: object(`s${index}`),
    })
    t.equal(response.status, status, type)
  }
  const form = await fetch(`http://127.0.0.1:${port}${services}/s0`, {
    method: 'DELETE',
    headers: { 'content-type': 'text/plain' },
    body: '{}',
  })
  t.equal(form.status, 415)
})
