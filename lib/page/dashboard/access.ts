import { createHash, timingSafeEqual } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import type { IncomingMessage } from 'node:http'
import { createSecureContext, type SecureContextOptions } from 'node:tls'
import { ConfigError, messageOf } from '../../errors.js'
import type { HostPort } from '../../state/ip.js'
import type { PageAccess, Reply } from '../server.js'

export interface DashboardFiles {
  readonly tokenFile: string
  readonly tlsCertFile: string
  readonly tlsKeyFile: string
}

/** Reads the token and the certificate. Throws a ConfigError that names the file. */
export async function dashboardAccess(
  { host }: HostPort,
  { tokenFile, tlsCertFile, tlsKeyFile }: DashboardFiles,
): Promise<PageAccess> {
  const token = tokenFile === '' ? '' : (await read('dashboardTokenFile', tokenFile)).toString()
  const secret = token.trim()
  if (tokenFile !== '' && secret.length < shortestToken) {
    throw new ConfigError(
      `dashboardTokenFile: ${tokenFile} holds no token of ${shortestToken} characters or more; \`openssl rand -hex 16\` makes one`,
    )
  }
  const tls = tlsCertFile === '' ? undefined : await readPair(tlsCertFile, tlsKeyFile)
  return {
    host,
    fallsForward: false,
    tls,
    refusal: secret === '' ? () => undefined : (request) => refusalOf(request, secret, !!tls),
  }
}

/** A pair that cannot be used stops the start, like a token: a page without it is of no use. */
async function readPair(
  certFile: string,
  keyFile: string,
): Promise<NonNullable<PageAccess['tls']>> {
  const cert = await read('dashboardTLSCertFile', certFile)
  const key = await read('dashboardTLSKeyFile', keyFile)
  check({ cert }, `dashboardTLSCertFile: ${certFile} holds no certificate in PEM`)
  check(
    { cert, key },
    `dashboardTLSKeyFile: ${keyFile} holds no private key in PEM, without a password, of the certificate in ${certFile}`,
  )
  return { cert, key }
}

function check(pair: SecureContextOptions, wrong: string): void {
  try {
    createSecureContext(pair)
  } catch (error) {
    throw new ConfigError(`${wrong}: ${messageOf(error)}`, { cause: error })
  }
}

const shortestToken = 16

/**
 * Cookies belong to a host, whatever the port. Dashboards with tokens of their own that are open
 * through tunnels to one host keep one each, because the name depends on the token.
 */
function cookieOf(secret: string): { readonly name: string; readonly value: string } {
  const value = digestOf(secret).toString('hex')
  return { name: `kube-proxy-dashboard-${value.slice(0, 8)}`, value }
}

/**
 * Accepts the token as a bearer token, as a cookie, or in the URL; the URL only sets the cookie.
 */
function refusalOf(request: IncomingMessage, secret: string, isTls: boolean): Reply | undefined {
  const { authorization = '', cookie = '' } = request.headers
  if (isSame(authorization.replace(/^Bearer /, ''), secret)) return undefined
  const cookies = cookie.split(/; */).map((pair) => pair.split('='))
  const { name, value } = cookieOf(secret)
  const [, kept = ''] = cookies.find(([its]) => its === name) ?? []
  if (isSame(kept, value)) return undefined
  const { searchParams } = new URL(request.url ?? '/', 'http://page')
  if (!isSame(searchParams.get('token') ?? '', secret)) {
    const text = 'give the token: /?token=…, or Authorization: Bearer …'
    return { status: 401, text, headers: { 'www-authenticate': 'Bearer' } }
  }
  const flags = `HttpOnly; SameSite=Strict; Path=/${isTls ? '; Secure' : ''}`
  const headers = { location: '/', 'set-cookie': `${name}=${value}; ${flags}` }
  return { status: 303, text: '', headers }
}

const digestOf = (text: string) => createHash('sha256').update(text).digest()

/** Compares in constant time, so that the time does not show how much is right. */
function isSame(given: string, wanted: string): boolean {
  return timingSafeEqual(digestOf(given), digestOf(wanted))
}

async function read(key: string, path: string): Promise<Buffer> {
  try {
    return await readFile(path)
  } catch (error) {
    throw new ConfigError(`${key}: ${path} cannot be read: ${messageOf(error)}`, { cause: error })
  }
}
