import { readFileSync } from 'node:fs'
import { Agent as HttpAgent, request as httpRequest } from 'node:http'
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https'
import { isIP, Socket } from 'node:net'
import { connect as tlsConnect, rootCertificates, type ConnectionOptions } from 'node:tls'
import { hostPort, withoutBrackets } from '../state/ip.js'
import { longestAttemptMs } from './api-client.js'
import { reasonOf } from './failure-reason.js'

/** What a proxy is trusted by: the same as the API server, as in kube-proxy's client. */
type Trust = Pick<ConnectionOptions, 'ca' | 'rejectUnauthorized'>

type Connected = (error: Error | null, socket: Socket) => void

const passwordWanted = 407
/** A proxy that has not connected to the server after this time loses its connection. */
const longestConnectMs = 30_000

/** Connects to API servers through an HTTP or HTTPS proxy. */
export function tunnelAgent(
  proxy: URL,
  options: Trust & { readonly isSecure: boolean },
): HttpAgent {
  const { isSecure, ...trust } = options
  const agent = isSecure ? new HttpsAgent() : new HttpAgent()
  agent.createConnection = (to: ConnectionOptions, tell?: Connected) => {
    // After an error Node does not look at the socket, which its types demand.
    const fail = (error: Error) => tell?.(named(proxy, error), asking.socket ?? new Socket())
    const asking = askProxy(proxy, { to, trust })
    asking
      .once('connect', ({ statusCode = 0, statusMessage }, socket: Socket, head: Buffer) => {
        if (statusCode < 200 || statusCode > 299) {
          socket.destroy()
          const hint = statusCode === passwordWanted ? '; its URL takes user:password@' : ''
          fail(new Error(`it answers ${statusCode} ${statusMessage ?? ''}${hint}`))
          return
        }
        if (head.length > 0) socket.unshift(head)
        tell?.(null, isSecure ? tlsConnect({ ...to, socket }) : socket)
      })
      .once('response', (response) => {
        response.destroy()
        fail(new Error(`it answers ${response.statusCode} ${response.statusMessage}`))
      })
      .on('timeout', () => asking.destroy(new Error(`no answer for ${longestConnectMs} ms`)))
      .on('error', fail)
      .end()
    return undefined
  }
  return agent
}

function askProxy(proxy: URL, options: { readonly to: ConnectionOptions; readonly trust: Trust }) {
  const { to, trust } = options
  const host = withoutBrackets(proxy.hostname)
  const server = withoutBrackets(to.host ?? '')
  const path = hostPort(server, Number(to.port))
  const account = [proxy.username, proxy.password].map(decodeURIComponent).join(':')
  const authorization = `Basic ${Buffer.from(account).toString('base64')}`
  const isTls = proxy.protocol === 'https:'
  const asked = {
    method: 'CONNECT',
    ...{ host, path, timeout: longestConnectMs },
    ...(proxy.port === '' ? {} : { port: proxy.port }),
    headers: {
      Host: path,
      ...(account === ':' ? {} : { 'Proxy-Authorization': authorization }),
    },
    agent: false,
    autoSelectFamilyAttemptTimeout: longestAttemptMs,
  }
  if (!isTls) return httpRequest(asked)
  // By itself Node compares the certificate with the header Host, which names the API server.
  const servername = isIP(host) === 0 ? host : ''
  return httpsRequest({ ...asked, ...trustOfProxy(trust), servername })
}

/** A proxy may also have a certificate that every browser trusts, unlike most API servers. */
function trustOfProxy({ ca, rejectUnauthorized }: Trust): Trust {
  return {
    ...(ca === undefined ? {} : { ca: [...rootCertificates, ...extraAuthorities(), ca].flat() }),
    ...(rejectUnauthorized === undefined ? {} : { rejectUnauthorized }),
  }
}

/** Node adds these only where no authority is given. */
function extraAuthorities(): readonly string[] {
  const path = process.env['NODE_EXTRA_CA_CERTS'] ?? ''
  try {
    return path === '' ? [] : [readFileSync(path, 'utf8')]
  } catch {
    // Node has warned about it.
    return []
  }
}

/** The name and the password in the URL are not shown. The code says whether TLS has failed. */
function named({ protocol, host }: URL, cause: Error): Error {
  const code = 'code' in cause ? { code: cause.code } : {}
  return Object.assign(new Error(`proxy ${protocol}//${host}: ${reasonOf(cause)}`, { cause }), code)
}
