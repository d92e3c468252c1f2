import { existsSync, readFileSync } from 'node:fs'
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import { connect, createServer as createTcpServer, type AddressInfo, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import t, { type Test } from 'tap'
import { stringify } from 'yaml'
import { ConfigError, messageOf, SourceError } from '../../lib/errors.js'
import { selfSigned } from '../../lib/lab/apiserver/certificate.js'
import { createApiServer } from '../../lib/lab/apiserver/server.js'
import { readJson } from '../../lib/sources/answer-body.js'
import { ApiClient } from '../../lib/sources/api-client.js'
import { apiServerSource } from '../../lib/sources/api-server.js'
import { openCluster } from '../../lib/sources/cluster-access.js'
import { ExecPlugin } from '../../lib/sources/exec-plugin.js'
import { readJsonLines } from '../../lib/sources/json-lines.js'
import { untilTrue } from '../support/until.js'

const base64 = (text: string) => Buffer.from(text).toString('base64')

async function folder(t: Test) {
  const directory = await mkdtemp(join(tmpdir(), 'kpts-access-'))
  t.teardown(() => rm(directory, { recursive: true }))
  return directory
}

/** An API server that runs until the test ends, and a client's question for its Services. */
async function serve(t: Test, options: Parameters<typeof createApiServer>[0]) {
  const api = createApiServer({ runtime: undefined, ...options })
  const controller = new AbortController()
  const running = api.run(controller.signal)
  t.teardown(async () => {
    controller.abort()
    await running
  })
  const request = { path: '/api/v1/services', headTimeoutMs: 300_000, idleTimeoutMs: 300_000 }
  const ask = (client: ApiClient) => client.send(request, controller.signal)
  return { server: await api.listening(), ask }
}

/** An HTTP proxy, and its URL. */
async function tunnel(t: Test, server: string): Promise<string> {
  const proxy = createServer().on('connect', (_request, near: Socket) => {
    const far = connect(Number(new URL(server).port), '127.0.0.1')
    for (const socket of [near, far]) socket.on('error', () => undefined)
    near.write('HTTP/1.1 200 OK\r\n\r\n')
    near.pipe(far).pipe(near)
  })
  await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve))
  t.teardown(() => proxy.close().closeAllConnections())
  return `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`
}

async function kubeconfig(directory: string, cluster: object, user: object): Promise<string> {
  const path = join(directory, 'kubeconfig')
  const text = stringify({
    apiVersion: 'v1',
    kind: 'Config',
    'current-context': 'here',
    contexts: [{ name: 'here', context: { cluster: 'c', user: 'u' } }],
    clusters: [{ name: 'c', cluster: { server: 'https://10.0.0.1:6443', ...cluster } }],
    users: [{ name: 'u', user }],
  })
  await writeFile(path, text)
  return path
}

void t.test(
  'a kubeconfig gives server and credentials, inline or in files beside it',
  async (t) => {
    const directory = await folder(t)
    const open = async (cluster: object, user: object, master = '') => {
      const path = await kubeconfig(directory, cluster, user)
      const access = await openCluster({ kubeconfig: path, master })
      return { server: access.server, ...(await access.credentials()) }
    }
    t.same(await open({ 'certificate-authority-data': base64('CA') }, { token: 'secret' }), {
      server: 'https://10.0.0.1:6443',
      ca: 'CA',
      headers: { Authorization: 'Bearer secret' },
    })
    const pair = selfSigned(['127.0.0.1'])
    for (const [name, text] of [
      ['ca', 'ca text'],
      ['cert', pair.certificate],
      ['key', pair.key],
      ['token', 'token text'],
    ] as const) {
      await writeFile(join(directory, name), text)
    }
    t.same(
      await open(
        { 'certificate-authority': 'ca', 'tls-server-name': 'api' },
        {
          'client-certificate': 'cert',
          'client-key': join(directory, 'key'),
          tokenFile: 'token',
          token: 'old',
        },
      ),
      {
        server: 'https://10.0.0.1:6443',
        ca: 'ca text',
        cert: pair.certificate,
        key: pair.key,
        servername: 'api',
        headers: { Authorization: 'Bearer token text' },
      },
    )
    t.same(
      await open(
        { 'insecure-skip-tls-verify': true },
        { username: 'u', password: 'p', as: 'other' },
      ),
      {
        server: 'https://10.0.0.1:6443',
        rejectUnauthorized: false,
        headers: { Authorization: `Basic ${base64('u:p')}`, 'Impersonate-User': 'other' },
      },
    )
    t.equal((await open({}, {}, 'https://other:6443')).server, 'https://other:6443')
  },
)

void t.test('a kubeconfig can ask to act as another user, with groups, UID and more', async (t) => {
  const directory = await folder(t)
  const seen: string[] = []
  const server = createServer((request, answer) => {
    const { rawHeaders } = request
    for (const [index, name] of rawHeaders.entries()) {
      if (index % 2 === 0 && name.startsWith('Imp')) seen.push(`${name}: ${rawHeaders[index + 1]}`)
    }
    answer.end('{}')
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => server.close())
  const { port } = server.address() as AddressInfo
  const send = async (user: object, cluster: object = {}) => {
    const to = { server: `http://127.0.0.1:${port}`, ...cluster }
    const path = await kubeconfig(directory, to, user)
    const client = new ApiClient(await openCluster({ kubeconfig: path, master: '' }), 'test')
    const request = { path: '/', headTimeoutMs: 300_000, idleTimeoutMs: 300_000 }
    await client.send(request, AbortSignal.timeout(300_000))
    return seen.splice(0)
  }
  const user = {
    as: 'other',
    'as-uid': '7',
    'as-groups': ['ops', 'Büro'],
    'as-user-extra': { 'Example.com/Scopes %': ['a', 'b'], none: [] },
  }
  const expected = [
    'Impersonate-User: other',
    'Impersonate-Uid: 7',
    'Impersonate-Group: ops',
    `Impersonate-Group: ${Buffer.from('Büro').toString('latin1')}`,
    'Impersonate-Extra-example.com%2Fscopes%20%25: a',
    'Impersonate-Extra-example.com%2Fscopes%20%25: b',
  ]
  t.same(await send(user), expected)
  const plugin = {
    apiVersion: 'client.authentication.k8s.io/v1',
    command: 'echo',
    args: [
      JSON.stringify({ apiVersion: 'client.authentication.k8s.io/v1', status: { token: 't' } }),
    ],
    interactiveMode: 'Never',
  }
  t.same(await send({ ...user, exec: plugin }), expected, 'also with a plugin')
  t.same(await send({ as: '', 'as-groups': [], 'as-user-extra': {} }), [])
  for (const [wrong, why] of [
    [{ as: 'a\nX: y' }, /user "u": as has a line break/],
    [{ as: 'a', 'as-uid': 7 }, /as-uid is not a text/],
    [{ as: 'a', 'as-groups': 'ops' }, /as-groups is not a list/],
    [{ as: 'a', 'as-groups': ['ops\r'] }, /as-groups has a line break/],
    [{ as: 'a', 'as-user-extra': { k: ['\0'] } }, /as-user-extra has a line break/],
    [{ as: 'a', 'as-user-extra': [] }, /as-user-extra is not a map/],
    [{ 'as-groups': ['ops'] }, /need as/],
  ] as const) {
    await t.rejects(send(wrong), why)
    await t.rejects(send(wrong), ConfigError)
  }
})

void t.test('files are read again after a minute, and at once after a refusal', async (t) => {
  const directory = await folder(t)
  const path = await kubeconfig(directory, {}, { tokenFile: 'token' })
  const token = join(directory, 'token')
  let time = 0
  const access = await openCluster({ kubeconfig: path, master: '' }, { env: {}, now: () => time })
  await t.rejects(access.credentials(), SourceError, 'not there yet')
  await writeFile(token, 'one')
  const now = async () => (await access.credentials()).headers['Authorization']
  t.equal(await now(), 'Bearer one')
  await writeFile(token, 'two')
  t.equal(await now(), 'Bearer one')
  time = 60_000
  t.equal(await now(), 'Bearer two')
  await writeFile(token, 'three')
  access.forget()
  t.equal(await now(), 'Bearer three')
})

void t.test('a file of credentials that is half written is named, and read again', async (t) => {
  const directory = await folder(t)
  const [one, two] = [1, 2].map(() => selfSigned(['127.0.0.1']))
  const good = { ca: 'CA', token: 'secret', cert: one?.certificate ?? '', key: one?.key ?? '' }
  const path = await kubeconfig(
    directory,
    { 'certificate-authority': 'ca' },
    { 'client-certificate': 'cert', 'client-key': 'key', tokenFile: 'token' },
  )
  const write = async (texts: Readonly<Record<string, string>>) => {
    for (const [name, text] of Object.entries(texts)) await writeFile(join(directory, name), text)
  }
  const access = await openCluster({ kubeconfig: path, master: '' }, { env: {}, now: () => 0 })
  const pair = /client certificate .*cert with client key .*key: /
  for (const [bad, why] of [
    [{ ca: '' }, /ca is empty/],
    [{ token: '\n' }, /token is empty/],
    [{ token: 'one\ntwo\n' }, /the token .*token has a line break/],
    [{ token: Buffer.from('one', 'utf16le').toString() }, /the token .*token has a line break/],
    [{ cert: '' }, /cert is empty/],
    [{ key: '' }, /key is empty/],
    [{ cert: good.cert.slice(0, 99) }, pair],
    [{ key: good.key.slice(0, 99) }, pair],
    [{ key: two?.key ?? '' }, pair],
  ] as const) {
    await write({ ...good, ...bad })
    await t.rejects(access.credentials(), why)
    await write(good)
    t.equal((await access.credentials()).cert, good.cert)
    access.forget()
  }
})

void t.test(
  'L03: without a kubeconfig --master is used, then the account of the pod, or there is a clear error',
  async (t) => {
    const open = (master: string, env: Record<string, string> = {}) =>
      openCluster({ kubeconfig: '', master }, { env, now: Date.now })
    t.equal((await open('http://127.0.0.1:8001')).server, 'http://127.0.0.1:8001')
    t.equal((await open('127.0.0.1:8001')).server, 'http://127.0.0.1:8001')
    const pod = { KUBERNETES_SERVICE_HOST: 'fd00::1', KUBERNETES_SERVICE_PORT: '443' }
    t.equal((await open('', pod)).server, 'https://[fd00::1]:443')
    await t.rejects(open(''), /neither --kubeconfig nor --master/)
    await t.rejects(open('http://[::1'), ConfigError)
    const ofKubeadm = { kubeconfig: '/var/lib/kube-proxy/kubeconfig.conf', master: '' }
    await t.rejects(openCluster(ofKubeadm, { env: pod, now: Date.now }), /its ServiceAccount/)
  },
)

void t.test('an error about a kubeconfig names the file and the entry', async (t) => {
  const directory = await folder(t)
  const path = join(directory, 'broken')
  const fails = async (text: string, expected: RegExp) => {
    await writeFile(path, text)
    await t.rejects(openCluster({ kubeconfig: path, master: '' }), expected)
    await t.rejects(openCluster({ kubeconfig: path, master: '' }), ConfigError)
  }
  await t.rejects(openCluster({ kubeconfig: join(directory, 'none'), master: '' }), /ENOENT/)
  await fails('{', /broken/)
  await fails('', /current-context is not set; kubectl config use-context NAME/)
  await fails('current-context: a', /contexts has no entry "a"/)
  await fails(
    '{current-context: a, contexts: [{name: a, context: {cluster: b}}]}',
    /clusters has no entry "b"/,
  )
  await fails(
    '{current-context: a, contexts: [{name: a, context: {cluster: b}}], clusters: [{name: b, cluster: {server: "ftp://x"}}]}',
    /server "ftp:\/\/x" is not an http or https URL/,
  )
})

void t.test('an exec plugin gives the token, and runs again after a refusal', async (t) => {
  const directory = await folder(t)
  let valid = 'first'
  const { server, ask } = await serve(t, { accepts: (token) => token === valid })
  const plugin = join(directory, 'plugin')
  const answer = (token: string) =>
    writeFile(
      plugin,
      `#!/bin/sh\necho '${JSON.stringify({
        apiVersion: 'client.authentication.k8s.io/v1',
        kind: 'ExecCredential',
        status: { token, expirationTimestamp: '2999-01-01T00:00:00Z' },
      })}'\n`,
    )
  await answer('first')
  await chmod(plugin, 0o755)
  const exec = {
    apiVersion: 'client.authentication.k8s.io/v1',
    command: plugin,
    interactiveMode: 'Never',
  }
  const path = await kubeconfig(directory, { server }, { exec })
  const client = new ApiClient(await openCluster({ kubeconfig: path, master: '' }), 'test')
  const get = async () => {
    const answered = await ask(client)
    return answered.ok ? 200 : answered.status
  }
  t.equal(await get(), 200)
  valid = 'second'
  await answer('second')
  t.equal(await get(), 401, 'the plugin said its token was good for long')
  t.equal(await get(), 200)
})

void t.test('what an exec plugin gave is kept until its end or a refusal', async (t) => {
  const directory = await folder(t)
  let valid = 'good'
  const { server, ask } = await serve(t, { accepts: (token) => token === valid })
  const [plugin, runs] = [join(directory, 'plugin'), join(directory, 'runs')]
  const client = async (status: object) => {
    const answer = JSON.stringify({ status })
    await writeFile(plugin, `#!/bin/sh\necho "$KUBERNETES_EXEC_INFO" >>${runs}\necho '${answer}'\n`)
    await writeFile(runs, '')
    await chmod(plugin, 0o755)
    const exec = { apiVersion: 'client.authentication.k8s.io/v1beta1', command: './plugin' }
    const path = await kubeconfig(directory, { server }, { exec })
    const access = await openCluster({ kubeconfig: path, master: '' })
    return new ApiClient(access, 'test')
  }
  const started = () => readFileSync(runs, 'utf8').trim().split('\n')
  const forever = await client({ token: 'good' })
  for (let number = 0; number < 3; number++) t.ok((await ask(forever)).ok)
  t.same(
    started().map((text) => JSON.parse(text) as unknown),
    [
      {
        apiVersion: 'client.authentication.k8s.io/v1beta1',
        kind: 'ExecCredential',
        spec: { interactive: false },
      },
    ],
  )
  valid = 'other'
  t.notOk((await ask(forever)).ok)
  t.notOk((await ask(forever)).ok)
  t.equal(started().length, 2, 'the refused token was not kept')
  valid = 'good'
  for (const [expirationTimestamp, count] of [
    ['2999-01-01T00:00:00Z', 1],
    ['2020-01-01T00:00:00Z', 3],
    ['soon', 3],
  ] as const) {
    const limited = await client({ token: 'good', expirationTimestamp })
    for (let number = 0; number < 3; number++) t.ok((await ask(limited)).ok)
    t.equal(started().length, count, expirationTimestamp)
  }
})

void t.test('an exec plugin that gave nothing usable runs again', async (t) => {
  const directory = await folder(t)
  const { server, ask } = await serve(t, { accepts: (token) => token === 'good' })
  const plugin = join(directory, 'plugin')
  await writeFile(plugin, '')
  await chmod(plugin, 0o755)
  const prints = (text: string) => writeFile(plugin, `#!/bin/sh\n${text}\n`)
  const exec = { apiVersion: 'client.authentication.k8s.io/v1', command: plugin, args: ['secret'] }
  const path = await kubeconfig(directory, { server }, { exec })
  const client = new ApiClient(await openCluster({ kubeconfig: path, master: '' }), 'test')
  const pair = selfSigned(['127.0.0.1'])
  const status = (fields: object) => `printf %s '${JSON.stringify({ status: fields })}'`
  for (const [bad, why] of [
    ['echo "{}"', /no ExecCredential with a status; run it by hand/],
    [`echo '{"status":null}'`, /no ExecCredential with a status/],
    ['echo secret', /no ExecCredential with a status/],
    [status({ expirationTimestamp: '2999-01-01T00:00:00Z' }), /neither a token nor a certificate/],
    [status({ clientCertificateData: pair.certificate }), /neither a token nor a certificate/],
    [status({ clientCertificateData: 'secret', clientKeyData: pair.key }), /no start line/i],
    [status({ token: 'secret\n' }), /its token has a line break/],
    ['exit 1', /exit code 1, and it gave no reason$/],
    ['kill -9 $$', /signal SIGKILL, and it gave no reason$/],
    ['echo no network >&2; exit 1', /no network$/],
    ['printf "secret%9000s" "no network" >&2; exit 1', / no network$/],
    ['read answer || { echo nobody answers >&2; exit 1; }', /nobody answers$/],
  ] as const) {
    await prints(bad)
    const error = await ask(client).catch((cause: unknown) => cause)
    t.type(error, SourceError)
    t.match(messageOf(error), why)
    t.ok(messageOf(error).startsWith(`run the exec plugin ${plugin}: `), messageOf(error))
    t.notMatch(messageOf(error), /secret/)
  }
  await prints(status({ token: 'good' }))
  t.ok((await ask(client)).ok, 'no failure was kept')
})

void t.test('an exec plugin that hangs holds up neither requests nor the end', async (t) => {
  const directory = await folder(t)
  const [plugin, starts] = [join(directory, 'plugin'), join(directory, 'starts')]
  await writeFile(plugin, `#!/bin/sh\necho $$ >>${starts}\nexec sleep 600\n`)
  await chmod(plugin, 0o755)
  const exec = { apiVersion: 'client.authentication.k8s.io/v1', command: plugin }
  const path = await kubeconfig(directory, { server: 'http://127.0.0.1:9' }, { exec })
  const client = new ApiClient(await openCluster({ kubeconfig: path, master: '' }), 'test')
  const stop = new AbortController()
  const get = (headTimeoutMs: number) =>
    client.send({ path: '/', headTimeoutMs, idleTimeoutMs: 1000 }, stop.signal)
  await t.rejects(get(300), /run the exec plugin for http:.*: no answer for 300 ms/)
  const waiting = t.rejects(get(60_000), /this program ends/)
  stop.abort()
  await waiting
  await untilTrue(() => existsSync(starts) && readFileSync(starts, 'utf8').endsWith('\n'))
  const started = readFileSync(starts, 'utf8')
  t.match(started, /^\d+\n$/, 'both waited for the same plugin')
  process.kill(Number(started))
})

void t.test('an exec plugin that hangs for good is ended, and the next one is asked', async (t) => {
  const directory = await folder(t)
  const [plugin, pid] = [join(directory, 'plugin'), join(directory, 'pid')]
  await writeFile(plugin, `#!/bin/sh\necho $$ >${pid}\nexec sleep 600\n`)
  await chmod(plugin, 0o755)
  const spec = { apiVersion: 'v1', command: plugin, args: [], env: {}, cluster: undefined }
  const asked = new ExecPlugin(spec, 3000)
  await t.rejects(asked.credentials(), { message: /plugin: it did not end within 3 s$/ })
  const ended = Number(readFileSync(pid, 'utf8'))
  t.throws(() => process.kill(ended, 0), { code: 'ESRCH' })
  await writeFile(plugin, `#!/bin/sh\necho '{"status":{"token":"good"}}'\n`)
  t.same((await asked.credentials()).headers, { Authorization: 'Bearer good' })
})

void t.test('an exec plugin that asks for it is told about the cluster', async (t) => {
  const directory = await folder(t)
  const [plugin, told] = [join(directory, 'plugin'), join(directory, 'told')]
  await writeFile(
    plugin,
    `#!/bin/sh\necho "$KUBERNETES_EXEC_INFO" >${told}\necho '{"status":{"token":"good"}}'\n`,
  )
  await chmod(plugin, 0o755)
  await writeFile(join(directory, 'ca'), 'an authority')
  const config = { audience: 'web' }
  const cluster = {
    server: 'https://10.0.0.1:6443',
    'tls-server-name': 'api',
    'certificate-authority': 'ca',
    extensions: [
      { name: 'other', extension: {} },
      { name: 'client.authentication.k8s.io/exec', extension: config },
    ],
  }
  for (const provideClusterInfo of [true, false]) {
    const exec = { apiVersion: 'v1', command: plugin, provideClusterInfo }
    const path = await kubeconfig(directory, cluster, { exec })
    await (await openCluster({ kubeconfig: path, master: '' })).credentials()
    const { spec } = JSON.parse(readFileSync(told, 'utf8')) as { spec: unknown }
    const { extensions: _, 'certificate-authority': __, ...same } = cluster
    const info = { ...same, 'certificate-authority-data': base64('an authority'), config }
    t.strictSame(spec, { interactive: false, ...(provideClusterInfo ? { cluster: info } : {}) })
  }
  const path = await kubeconfig(
    directory,
    { 'certificate-authority': 'nothing' },
    { exec: { command: plugin, provideClusterInfo: true } },
  )
  await t.rejects(openCluster({ kubeconfig: path, master: '' }), {
    message: /user "u": ENOENT.*nothing/,
  })
})

void t.test('after a refusal the kubeconfig is read again', async (t) => {
  const directory = await folder(t)
  const tls = selfSigned(['127.0.0.1'])
  let valid = 'good'
  const { server, ask } = await serve(t, { tls, accepts: (token) => token === valid })
  const authority = { 'certificate-authority-data': base64(tls.certificate) }
  const plugin = (token: string) => ({ command: 'echo', args: [`{"status":{"token":"${token}"}}`] })
  const behindProxy = { 'proxy-url': await tunnel(t, server) }
  for (const way of [{}, behindProxy]) {
    valid = 'good'
    const cluster = { server, ...authority, ...way }
    const path = await kubeconfig(directory, cluster, { token: 'good' })
    const client = new ApiClient(await openCluster({ kubeconfig: path, master: '' }), 'test')
    const get = async () => (await ask(client)).ok
    t.ok(await get())
    for (const [index, user] of [
      { token: 'token-1' },
      { exec: plugin('token-2') },
      { exec: plugin('token-3') },
      { token: 'token-4' },
    ].entries()) {
      valid = `token-${index + 1}`
      await kubeconfig(directory, cluster, user)
      t.notOk(await get(), 'nothing is read before a refusal')
      t.ok(await get(), JSON.stringify(user))
    }
    valid = 'later'
    await writeFile(path, '')
    t.notOk(await get())
    t.notOk(await get(), 'half written, so what it said last is sent')
    valid = 'token-4'
    t.ok(await get())
    valid = 'later'
    await kubeconfig(directory, { ...cluster, server: 'https://10.0.0.1' }, { token: 'later' })
    t.notOk(await get())
    t.notOk(await get(), 'a token for another server is not sent to this one')
    await kubeconfig(directory, cluster, { token: 'later' })
    t.notOk(await get())
    t.ok(await get())
  }
})

void t.test('a failure tells that the kubeconfig names another server now', async (t) => {
  const directory = await folder(t)
  const gone = { server: 'http://127.0.0.1:1' }
  const path = await kubeconfig(directory, gone, {})
  const client = new ApiClient(await openCluster({ kubeconfig: path, master: '' }), 'test')
  const controller = new AbortController()
  const failures: string[] = []
  const nothing = () => undefined
  const failed = (message: string) => void failures.push(message)
  const source = apiServerSource({ client, nodeName: 'n', timing: { firstRetryMs: 10 } })
  const sink = { upsert: nothing, remove: nothing, synced: nothing, failed }
  const running = source.run(sink, controller.signal)
  await untilTrue(() => failures.length > 0)
  t.notMatch(failures.join(), 'kubeconfig')
  await kubeconfig(directory, { server: 'http://127.0.0.1:2' }, {})
  await untilTrue(() => failures.at(-1)?.includes('kubeconfig') === true)
  t.match(failures.at(-1), /127\.0\.0\.1:1.*; the kubeconfig names http:\/\/127\.0\.0\.1:2 now/)
  controller.abort()
  await running
  const fixed = await openCluster({ kubeconfig: path, master: gone.server })
  t.equal(fixed.movedTo(), undefined, '--master counts, whatever the file names')
})

void t.test('a proxy that hangs holds up neither requests nor the end', async (t) => {
  let asked = 0
  const proxy = createTcpServer((socket) => {
    socket.on('error', () => undefined).once('data', () => asked++)
    t.teardown(() => socket.destroy())
  })
  await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve))
  t.teardown(() => proxy.close())
  const { port } = proxy.address() as AddressInfo
  const cluster = { 'proxy-url': `http://127.0.0.1:${port}` }
  const path = await kubeconfig(await folder(t), cluster, {})
  const client = new ApiClient(await openCluster({ kubeconfig: path, master: '' }), 'test')
  const stop = new AbortController()
  const get = (headTimeoutMs: number) =>
    client.send({ path: '/', headTimeoutMs, idleTimeoutMs: 1000 }, stop.signal)
  await t.rejects(get(300), /GET https:.*: no answer for 300 ms/)
  await untilTrue(() => asked === 1)
  const waiting = t.rejects(get(60_000), /this program ends/)
  await untilTrue(() => asked === 2)
  stop.abort()
  await waiting
})

void t.test('behind a proxy all credentials are sent that are sent without one', async (t) => {
  const directory = await folder(t)
  const tls = selfSigned(['127.0.0.1'])
  const { server, ask } = await serve(t, { tls, accepts: (token) => token === 'good' })
  const cluster = {
    server,
    'proxy-url': await tunnel(t, server),
    'certificate-authority': 'ca',
  }
  await writeFile(join(directory, 'ca'), tls.certificate)
  await writeFile(join(directory, 'token'), 'good\n')
  const plugin = { command: 'echo', args: ['{"status":{"token":"good"}}'] }
  for (const user of [{ token: 'good' }, { tokenFile: 'token' }, { exec: plugin }]) {
    const path = await kubeconfig(directory, cluster, user)
    const client = new ApiClient(await openCluster({ kubeconfig: path, master: '' }), 'test')
    t.ok((await ask(client)).ok, Object.keys(user).join())
  }
})

void t.test(
  'TLS through SOCKS: the certificate must be for the address of the server',
  async (t) => {
    const directory = await folder(t)
    const proxy = createTcpServer((near) => {
      near
        .on('error', () => undefined)
        .once('data', () => {
          near.write(Buffer.from([5, 0]))
          near.once('data', (asked) => {
            const far = connect(asked.readUInt16BE(8), '127.0.0.1').on('error', () => undefined)
            near.write(Buffer.from([5, 0, 0, 1, 0, 0, 0, 0, 0, 0]))
            near.pipe(far).pipe(near)
          })
        })
    })
    await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve))
    t.teardown(() => proxy.close())
    const proxyUrl = `socks5://127.0.0.1:${(proxy.address() as AddressInfo).port}`
    for (const [host, isRight] of [
      ['127.0.0.1', true],
      ['localhost', false],
    ] as const) {
      const tls = selfSigned([host])
      const { server, ask } = await serve(t, { tls })
      const authority = { 'certificate-authority-data': base64(tls.certificate) }
      const cluster = { server, 'proxy-url': proxyUrl, ...authority }
      const path = await kubeconfig(directory, cluster, { token: 'any' })
      const access = await openCluster({ kubeconfig: path, master: '' })
      t.equal((await access.credentials()).timeout, undefined, 'a watch has no time limit')
      const asking = ask(new ApiClient(access, 'test'))
      if (isRight) t.ok((await asking).ok)
      else await t.rejects(asking, /does not match certificate's altnames/)
    }
  },
)

void t.test('TLS: only the certificate authority of the kubeconfig is trusted', async (t) => {
  const directory = await folder(t)
  const tls = selfSigned(['127.0.0.1'])
  const { server, ask } = await serve(t, { tls })
  const get = async (authority: object) => {
    const access = await openCluster({
      kubeconfig: await kubeconfig(directory, { server, ...authority }, {}),
      master: '',
    })
    return (await ask(new ApiClient(access, 'test'))).ok
  }
  t.ok(await get({ 'certificate-authority-data': base64(tls.certificate) }))
  t.ok(await get({ 'insecure-skip-tls-verify': true }))
  await t.rejects(get({}), /self-signed certificate.* authority is not given, so Node decides$/)
  const other = selfSigned(['127.0.0.1'])
  const data = { 'certificate-authority-data': base64(other.certificate) }
  await t.rejects(get(data), SourceError)
  await t.rejects(get(data), /authority is in the kubeconfig$/)
  await writeFile(join(directory, 'ca'), 'no certificate')
  await t.rejects(get({ 'certificate-authority': 'ca' }), /self-signed .*authority is \/.*\/ca$/)
})

void t.test('TLS: a server without it is told in plain words', async (t) => {
  const { server } = await serve(t, { accepts: () => true })
  const path = await kubeconfig(await folder(t), { server: server.replace('http:', 'https:') }, {})
  const client = new ApiClient(await openCluster({ kubeconfig: path, master: '' }), 'test')
  const limits = { headTimeoutMs: 60_000, idleTimeoutMs: 60_000 }
  await t.rejects(client.send({ path: '/', ...limits }, new AbortController().signal), {
    message: /\/: TLS fails: wrong version number, so it may speak plain HTTP at this port$/,
  })
})

void t.test('TLS: whose certificate is out of its time is told, and what to do', async (t) => {
  const day = 86_400_000
  for (const [shift, fault] of [
    [-400 * day, 'has expired; renew it'],
    [30 * day, 'is not valid yet; wait'],
  ] as const) {
    const tls = selfSigned(['127.0.0.1'], Date.now() + shift)
    const { server, ask } = await serve(t, { tls })
    const cluster = { server, 'certificate-authority-data': base64(tls.certificate) }
    const access = await openCluster({
      kubeconfig: await kubeconfig(await folder(t), cluster, {}),
      master: '',
    })
    await t.rejects(ask(new ApiClient(access, 'test')), {
      message: `GET ${server}/api/v1/services: TLS fails: the certificate of this server, or one that signed it, ${fault}, or set the clock of this node if it is wrong`,
    })
  }
})

void t.test('TLS: what is read in the middle of a rotation is read again at once', async (t) => {
  const directory = await folder(t)
  const make = () => selfSigned(['127.0.0.1'])
  const [tls, client, next] = [make(), make(), make()]
  const { server, ask } = await serve(t, { tls })
  const write = (name: string, text: string) => writeFile(join(directory, name), text)
  await write('ca', next.certificate)
  await write('cert', next.certificate)
  await write('key', client.key)
  const path = await kubeconfig(
    directory,
    { server, 'certificate-authority': 'ca' },
    { 'client-certificate': 'cert', 'client-key': 'key' },
  )
  const access = await openCluster({ kubeconfig: path, master: '' }, { env: {}, now: () => 0 })
  const get = async () => (await ask(new ApiClient(access, 'test'))).ok
  await t.rejects(get(), /key values mismatch/)
  await write('key', next.key)
  await t.rejects(get(), /self-signed certificate/)
  await write('ca', tls.certificate)
  t.ok(await get())
})

void t.test('event lines may be cut anywhere, and wrong lines are reported', async (t) => {
  const read = async (...chunks: readonly string[]) => {
    const lines: unknown[] = []
    for await (const line of readJsonLines(
      Readable.from(chunks.map((chunk) => Buffer.from(chunk))),
    )) {
      lines.push(line)
    }
    return lines
  }
  t.same(await read('{"a":', '1}\n{"b"', ':2}\n\n{"c":3'), [{ a: 1 }, { b: 2 }])
  const umlaut = Buffer.from('{"a":"ü"}\n')
  const lines: unknown[] = []
  const halves = Readable.from([umlaut.subarray(0, 7), umlaut.subarray(7)])
  for await (const line of readJsonLines(halves)) lines.push(line)
  t.same(lines, [{ a: 'ü' }], 'a character cut in two is whole again')
  await t.rejects(read('{"a":1}\noops\n'), /a line is not JSON/)
  await t.rejects(read(...Array<string>(40).fill('x'.repeat(1024 * 1024))), /longer than/)
})

t.test('an answer without an end is not kept for ever', async (t) => {
  const piece = Buffer.alloc(16 * 1024 * 1024, ' ')
  let pieces = 0
  const body = function* () {
    while (pieces++ < 1_000) yield piece
  }
  await t.rejects(readJson(Readable.from(body()), 'it'), {
    message: /^it is longer than \d+ bytes/,
  })
  t.ok(pieces < 100, 'it is not read further')
})
