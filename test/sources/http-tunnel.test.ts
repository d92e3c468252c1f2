import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer, type IncomingMessage } from 'node:http'
import { createServer as createTlsServer } from 'node:https'
import { connect, type AddressInfo, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { stringify } from 'yaml'
import { selfSigned } from '../../lib/lab/apiserver/certificate.js'
import { createApiServer } from '../../lib/lab/apiserver/server.js'
import { ApiClient } from '../../lib/sources/api-client.js'
import { chosenProxy } from '../../lib/sources/chosen-proxy.js'
import { openCluster } from '../../lib/sources/cluster-access.js'

const certificateFor = (...hosts: readonly string[]) => selfSigned(hosts)

interface Way {
  /** The address in the kubeconfig; the proxy leads to 127.0.0.1 in any case. */
  readonly server?: string
  readonly proxyHost?: string
  /** HTTPS to the proxy, with the certificate of the API server. */
  readonly isTls?: boolean
  readonly account?: string
  readonly isInsecure?: boolean
  /** The variable that names the proxy, instead of the kubeconfig. */
  readonly variable?: string
  /** The proxy has a certificate of its own, which the kubeconfig does not know. */
  readonly isOther?: boolean
  readonly answer?: string
}

/** Asks an API server with TLS through a proxy. Resolves to what the proxy was asked for. */
async function asked(t: Test, way: Way) {
  const { server = 'https://127.0.0.1', proxyHost = '127.0.0.1', answer = '200 OK' } = way
  const tls = certificateFor(new URL(server).hostname.replace(/[[\]]/g, ''), proxyHost)
  const proxyTls = way.isOther ? certificateFor(proxyHost) : tls
  const api = createApiServer({ runtime: undefined, tls })
  const stop = new AbortController()
  const running = api.run(stop.signal)
  const { port } = new URL(await api.listening())
  const seen: { url: string; authorization: string | undefined }[] = []
  const proxy = way.isTls
    ? createTlsServer({ cert: proxyTls.certificate, key: proxyTls.key })
    : createServer()
  proxy.on('connect', (request: IncomingMessage, near: Socket) => {
    seen.push({
      url: request.url ?? '',
      authorization: request.headers['proxy-authorization'],
    })
    near.on('error', () => undefined)
    near.write(`HTTP/1.1 ${answer}\r\n\r\n`)
    if (answer !== '200 OK') return
    const far = connect(Number(port), '127.0.0.1').on('error', () => undefined)
    near.pipe(far).pipe(near)
  })
  await new Promise<void>((resolve) => proxy.listen(0, proxyHost, resolve))
  const directory = await mkdtemp(join(tmpdir(), 'kpts-tunnel-'))
  t.teardown(async () => {
    proxy.close().closeAllConnections()
    stop.abort()
    await running
    await rm(directory, { recursive: true })
  })
  const authority = Buffer.from(tls.certificate).toString('base64')
  const host = proxyHost.includes(':') ? `[${proxyHost}]` : proxyHost
  const at = `${way.account ?? ''}${host}:${(proxy.address() as AddressInfo).port}`
  const url = `${way.isTls ? 'https' : 'http'}://${at}`
  const cluster = {
    server: `${server}:6443`,
    ...(way.variable === undefined ? { 'proxy-url': url } : {}),
    ...(way.isInsecure
      ? { 'insecure-skip-tls-verify': true }
      : { 'certificate-authority-data': authority }),
  }
  const kubeconfig = join(directory, 'kubeconfig')
  const text = stringify({
    'current-context': 'here',
    contexts: [{ name: 'here', context: { cluster: 'c', user: 'u' } }],
    clusters: [{ name: 'c', cluster }],
    users: [{ name: 'u', user: { token: 'any' } }],
  })
  await writeFile(kubeconfig, text)
  const env = way.variable === undefined ? {} : { [way.variable]: url }
  const deps = { env, now: () => performance.now() }
  const client = new ApiClient(await openCluster({ kubeconfig, master: '' }, deps), 'test')
  const request = { path: '/api/v1/services', headTimeoutMs: 300_000, idleTimeoutMs: 300_000 }
  // Any answer came through. The server refuses requests for another address than its own.
  await client.send(request, stop.signal)
  return seen[0]
}

void t.test(
  'an HTTPS proxy may have a certificate of the authority of the kubeconfig',
  async (t) => {
    t.ok(await asked(t, { isTls: true }))
    t.ok(await asked(t, { isTls: true, isOther: true, isInsecure: true }))
    await t.rejects(asked(t, { isTls: true, isOther: true }), {
      message: /services: proxy https:\/\/127\.0\.0\.1:\d+: self-signed certificate; the trusted/,
    })
  },
)

void t.test('proxies and API servers may have IPv6 addresses', async (t) => {
  t.match(await asked(t, { proxyHost: '::1' }), { url: '127.0.0.1:6443' })
  t.match(await asked(t, { proxyHost: '::1', isTls: true }), {
    url: '127.0.0.1:6443',
  })
  t.match(await asked(t, { server: 'https://[fd00::7]' }), { url: '[fd00::7]:6443' })
})

void t.test(
  'a proxy gets the name and the password of its URL, and its refusal is told',
  async (t) => {
    const authorization = `Basic ${Buffer.from('u:p@ss').toString('base64')}`
    t.match(await asked(t, { account: 'u:p%40ss@' }), { authorization })
    for (const [answer, told] of [
      ['407 Proxy Authentication Required', 'it answers 407 .*; its URL takes user:password@'],
      ['403 Forbidden', 'it answers 403 Forbidden'],
    ] as const) {
      await t.rejects(asked(t, { account: 'u:secret@', answer }), {
        message: new RegExp(`services: proxy http://127\\.0\\.0\\.1:\\d+: ${told}$`),
      })
    }
  },
)

void t.test('without proxy-url the environment names the proxy', async (t) => {
  for (const variable of ['HTTPS_PROXY', 'https_proxy']) {
    for (const isTls of [false, true]) {
      const server = 'https://10.9.9.9'
      t.match(await asked(t, { server, variable, isTls }), { url: '10.9.9.9:6443' }, variable)
    }
  }
})

void t.test('NO_PROXY names servers that are asked directly, as in programs in Go', async (t) => {
  const proxyTo = (server: string, env: Record<string, string>, proxy?: string) =>
    chosenProxy({ server, proxy }, env)?.host
  const env = { HTTPS_PROXY: 'proxy.example:3128' }
  const ipv4 = 'https://10.0.0.1:6443'
  const ipv6 = 'https://[fd00::1]'
  const name = 'https://api.example.com:6443'
  for (const [server, entries] of [
    [ipv4, ['*', '10.0.0.1', '10.0.0.0/8', '10.0.0.1:6443', 'other.example, 10.0.0.1']],
    [ipv6, ['fd00::1', 'fd00::/8', '[fd00::1]', '[fd00:0::1]:443']],
    [name, ['api.example.com', 'example.com', '.example.com', '*.example.com', 'EXAMPLE.com:6443']],
  ] as const) {
    t.equal(proxyTo(server, env), 'proxy.example:3128')
    for (const entry of entries)
      t.equal(proxyTo(server, { ...env, no_proxy: entry }), undefined, entry)
  }
  for (const [server, entries] of [
    [ipv4, ['', ',', '10.0.0.2', '10.1.0.0/16', '10.0.0.1:443', '0.0.1', 'fd00::/8']],
    [ipv6, ['fd00::2', 'fe00::/8', '[fd00::1]:6443', 'fd00']],
    [name, ['', '.', 'xample.com', '.api.example.com', 'example.com:443', 'com.', 'api.*']],
  ] as const) {
    for (const entry of entries)
      t.ok(proxyTo(server, { ...env, NO_PROXY: entry }), `${server} ${entry}`)
  }
  t.equal(proxyTo('http://10.0.0.1', env), undefined, 'HTTPS_PROXY is not for HTTP')
  t.equal(proxyTo('http://10.0.0.1', { http_proxy: 'http://u:p@p:1' }), 'p:1')
  for (const here of ['https://127.0.0.1:6443', 'https://[::1]', 'https://localhost:1']) {
    t.equal(proxyTo(here, env), undefined, here)
  }
  t.equal(proxyTo(ipv4, { ...env, NO_PROXY: '*' }, 'http://own:1'), 'own:1', 'the kubeconfig wins')
  t.throws(() => proxyTo(ipv4, { HTTPS_PROXY: 'http://u:secret@:x' }), {
    message: 'HTTPS_PROXY in the environment is not a URL of a proxy',
  })
  t.throws(() => proxyTo(ipv4, { HTTPS_PROXY: 'socks5://p:1' }), { message: /of the kind socks5:/ })
  t.throws(() => proxyTo(ipv4, {}, 'ftp://p:1'), { message: /^proxy-url in the kubeconfig names/ })
})
