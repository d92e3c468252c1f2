import t from 'tap'
import { execFileSync } from 'node:child_process'
import { request as httpRequest } from 'node:http'
import { request as httpsRequest } from 'node:https'
import { join } from 'node:path'
import { selfSigned } from '../../lib/lab/apiserver/certificate.js'
import { dashboardAccess } from '../../lib/page/dashboard/access.js'
import { PageServer } from '../../lib/page/server.js'
import { enterPrivateNetns } from '../support/private-netns.js'
import { kubeProxy, startDaemon } from '../support/live-daemon.js'

/** The page of a running daemon shows what is served, and refuses some requests. */

const skip = enterPrivateNetns() ?? false
if (skip === false) {
  execFileSync('ip', ['link', 'set', 'lo', 'up'])
  execFileSync('ip', ['address', 'add', '192.0.2.1/24', 'dev', 'lo'])
}

interface Asked {
  readonly path?: string
  readonly headers?: Readonly<Record<string, string>>
  readonly command?: object
  readonly tls?: boolean
  readonly port?: number
}

interface Answered {
  readonly status: number
  readonly headers: Readonly<Record<string, string | readonly string[] | undefined>>
  readonly body: string
}

/** Sends one request. Of an endless answer it returns the first piece. */
function ask({
  headers = {},
  command,
  tls = false,
  port = 8383,
  ...asked
}: Asked = {}): Promise<Answered> {
  return new Promise((resolve, reject) => {
    const { path = command ? '/command' : '/' } = asked
    const post = command ? { 'content-type': 'application/json' } : {}
    const options = {
      ...{ host: '127.0.0.1', port, path, method: command ? 'POST' : 'GET' },
      ...{ headers: { ...post, ...headers }, rejectUnauthorized: false, agent: false },
    }
    const sent = (tls ? httpsRequest : httpRequest)(options, (response) => {
      const done = (body: string) => {
        resolve({ status: response.statusCode ?? 0, headers: response.headers, body })
        sent.destroy()
      }
      response
        .setEncoding('utf8')
        .once('data', done)
        .once('end', () => done(''))
    })
    sent.once('error', reject)
    sent.end(command && JSON.stringify(command))
  })
}

interface Seen {
  readonly isReadOnly: boolean
  readonly mode: string
  readonly services: { readonly set: readonly { readonly key: string }[] }
  readonly service: { readonly name: string }
  readonly path: { readonly ways: readonly { readonly pod: string }[] }
  readonly rules: { readonly lines: readonly unknown[] }
}

async function view(): Promise<Seen> {
  const { body } = await ask({ path: '/events' })
  return JSON.parse(body.replace(/^data: /, '')) as Seen
}

for (const mode of ['nftables', 'userspace'] as const) {
  t.test(
    `the dashboard shows the state of a daemon in ${mode} mode, and changes nothing`,
    { skip },
    async (t) => {
      const daemon = await startDaemon(t, mode, '--dashboard-address', '127.0.0.1:8383')
      const page = await ask()
      t.equal(page.status, 200)
      t.match(page.headers['content-security-policy'], /default-src 'none'/)
      t.match(await view(), { isReadOnly: true, mode })
      t.equal((await ask({ command: { do: 'select', service: 'default/web:http' } })).status, 200)
      const seen = await view()
      t.equal(seen.services.set.length, 5)
      t.equal(seen.service.name, 'default/web:http')
      t.same(
        seen.path.ways.map(({ pod }) => pod),
        ['10.244.1.11:8080', '10.244.1.12:8080'],
      )
      t.ok(seen.rules.lines.length > 3)
      const refused = await ask({ command: { do: 'replicas', count: 1 } })
      t.match(refused, { status: 409, body: /read-only/ })
      const foreign = await ask({ headers: { host: 'evil.example:8383' } })
      t.match(foreign, { status: 403, body: /foreign Host/ })
      const other = { origin: 'http://evil.example' }
      t.equal((await ask({ headers: other, command: { do: 'select', service: 'x' } })).status, 403)
      await daemon.end('SIGTERM')
      await kubeProxy('cleanup')
    },
  )
}

t.test(
  'the dashboard is off by default, and needs a token on an address that others can reach',
  { skip },
  async (t) => {
    const daemon = await startDaemon(t, 'nftables')
    await t.rejects(ask(), { code: 'ECONNREFUSED' })
    await daemon.end('SIGTERM')
    const open = await kubeProxy('--dashboard-address', '0.0.0.0:8383', '--manifests', '/nowhere')
    t.equal(open.code, 2)
    t.match(open.stderr, /can be reached from other machines; give --dashboard-token-file/)
    const folder = t.testdir({ short: 'abc\n' })
    const flags = ['--dashboard-address', '0.0.0.0:8383', '--manifests', folder]
    const short = await kubeProxy(...flags, '--dashboard-token-file', join(folder, 'short'))
    t.equal(short.code, 2)
    t.match(short.stderr, /holds no token of 16 characters or more/)
  },
)

t.test(
  'the dashboard accepts a bearer token or a cookie, and uses TLS if there is a certificate',
  { skip },
  async (t) => {
    const token = 'correct-horse-battery'
    const made = selfSigned(['127.0.0.1'])
    const files = { 'cert.pem': made.certificate, 'key.pem': made.key }
    const folder = t.testdir({ token: `${token}\n`, ...files })
    const daemon = await startDaemon(
      t,
      'nftables',
      ...['--dashboard-address', '0.0.0.0:8383', '--dashboard-token-file', join(folder, 'token')],
      ...['--dashboard-tls-cert-file', join(folder, 'cert.pem')],
      ...['--dashboard-tls-key-file', join(folder, 'key.pem')],
    )
    const tls = true
    t.equal((await ask({ tls })).status, 401)
    t.equal((await ask({ tls, path: '/events' })).status, 401)
    t.equal((await ask({ tls, path: '/?token=wrong' })).status, 401)
    t.equal((await ask({ tls, headers: { authorization: `Bearer ${token}` } })).status, 200)
    const letIn = await ask({ tls, path: `/?token=${token}` })
    t.match(letIn, { status: 303, headers: { location: '/' } })
    const [cookie = ''] = letIn.headers['set-cookie'] ?? []
    t.match(cookie, /HttpOnly; SameSite=Strict; Path=\/; Secure$/)
    t.notMatch(cookie, token)
    const [kept = ''] = cookie.split(';')
    t.equal((await ask({ tls, headers: { cookie: kept } })).status, 200)
    const named = { host: 'node.example:8383', cookie: kept }
    t.equal((await ask({ tls, headers: named })).status, 403, 'a name may be anybody’s')
    await daemon.end('SIGTERM')
    await kubeProxy('cleanup')
  },
)

t.test('dashboards of several nodes can be open through tunnels to one host', async (t) => {
  const perform = () => Promise.resolve()
  const source = { view: () => ({}) as never, subscribe: () => () => undefined, perform }
  const openPage = async (token: string) => {
    const tokenFile = join(t.testdir({ token }), 'token')
    const files = { tokenFile, tlsCertFile: '', tlsKeyFile: '' }
    const access = await dashboardAccess({ host: '127.0.0.1', port: 0 }, files)
    const page = await PageServer.listen(source, 0, access)
    t.teardown(() => page.close())
    return Number(new URL(page.url).port)
  }
  const tokens = ['correct-horse-battery', 'wrong-horse-batteries', 'correct-horse-battery']
  // A browser keeps one cookie for each name, whatever the port.
  const jar = new Map<string, string>()
  const cookie = () => [...jar].map((pair) => pair.join('=')).join('; ')
  const ports = []
  for (const token of tokens) {
    const port = await openPage(token)
    ports.push(port)
    const { headers } = await ask({ port, path: `/?token=${token}` })
    const [name = '', value = ''] = (headers['set-cookie']?.[0] ?? '').split(/[=;]/)
    jar.set(name, value)
  }
  for (const port of ports)
    t.equal((await ask({ port, headers: { cookie: cookie() } })).status, 200)
  t.equal(jar.size, 2, 'one cookie is enough for nodes with the same token')
})

t.test('a tunnel to the page may begin at any port, and no other page may use it', async (t) => {
  const none = { tokenFile: '', tlsCertFile: '', tlsKeyFile: '' }
  const access = await dashboardAccess({ host: '127.0.0.1', port: 0 }, none)
  const perform = () => Promise.resolve()
  const source = { view: () => ({}) as never, subscribe: () => () => undefined, perform }
  const page = await PageServer.listen(source, 0, access)
  t.teardown(() => page.close())
  const port = Number(new URL(page.url).port)
  const statusAt = async (host: string, origin = `http://${host}`) => {
    const headers = { host, origin }
    const { status } = await ask({ port, headers, command: { do: 'select', service: 'x' } })
    t.equal((await ask({ port, headers: { host } })).status === 403, host.includes('evil'))
    return status
  }
  for (const host of ['127.0.0.1', 'localhost']) {
    for (const shown of [host, `${host}:${port}`, `${host}:9090`]) {
      t.equal(await statusAt(shown), 200, `${page.url} as ${shown}`)
    }
  }
  t.equal(await statusAt('evil.example:9090'), 403)
  t.equal(await statusAt('127.0.0.1:9090', 'http://127.0.0.1:9091'), 403)
  t.equal(await statusAt('127.0.0.1:9090', 'null'), 403)
})
