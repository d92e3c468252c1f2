import { generateKeyPairSync, randomBytes, sign } from 'node:crypto'
import { parseIp } from '../../state/ip.js'

/** PEM. */
export interface Certificate {
  readonly certificate: string
  readonly key: string
}

/** Object identifiers as the bytes of their DER content. */
const oid = {
  ecdsaWithSha256: '2a8648ce3d040302',
  commonName: '550403',
  keyUsage: '551d0f',
  subjectAltName: '551d11',
  basicConstraints: '551d13',
  extendedKeyUsage: '551d25',
  serverAuth: '2b06010505070301',
} as const

const tag = {
  boolean: 0x01,
  integer: 0x02,
  bits: 0x03,
  octets: 0x04,
  oid: 0x06,
  text: 0x0c,
  time: 0x18,
  sequence: 0x30,
  set: 0x31,
} as const

const hourMs = 3_600_000
const yearMs = 365 * 24 * hourMs

/**
 * A certificate that is its own authority. A kubeconfig can contain it, so no client has to skip
 * verification. Node can sign but cannot make certificates, so the few DER structures are here.
 * `hosts` are the names and addresses under which clients reach the server.
 */
export function selfSigned(hosts: readonly string[], now = Date.now()): Certificate {
  const { privateKey, publicKey } = generateKeyPairSync('ec', { namedCurve: 'prime256v1' })
  const algorithm = der(tag.sequence, identifier(oid.ecdsaWithSha256))
  const name = nameOf('kube-proxy-ts')
  const content = der(
    tag.sequence,
    der(0xa0, der(tag.integer, Buffer.from([2]))),
    // The first bit is 0, because the number must be positive.
    der(tag.integer, Buffer.from([0x01, ...randomBytes(15)])),
    algorithm,
    name,
    der(tag.sequence, timeOf(now - hourMs), timeOf(now + yearMs)),
    name,
    publicKey.export({ type: 'spki', format: 'der' }),
    der(0xa3, der(tag.sequence, ...extensions(hosts))),
  )
  const signature = sign('sha256', content, privateKey)
  const whole = der(tag.sequence, content, algorithm, bits(signature))
  return {
    certificate: pem('CERTIFICATE', whole),
    key: privateKey.export({ type: 'pkcs8', format: 'pem' }).toString(),
  }
}

function extensions(hosts: readonly string[]): readonly Buffer[] {
  const isCritical = der(tag.boolean, Buffer.from([0xff]))
  const extension = (id: string, value: Buffer, ...critical: readonly Buffer[]) =>
    der(tag.sequence, identifier(id), ...critical, der(tag.octets, value))
  const authority = der(tag.sequence, der(tag.boolean, Buffer.from([0xff])))
  // digitalSignature and keyCertSign; the leading 2 counts the unused bits.
  const usage = der(tag.bits, Buffer.from([2, 0x84]))
  return [
    extension(oid.basicConstraints, authority, isCritical),
    extension(oid.keyUsage, usage, isCritical),
    extension(oid.extendedKeyUsage, der(tag.sequence, identifier(oid.serverAuth))),
    extension(oid.subjectAltName, der(tag.sequence, ...hosts.map(alternativeName))),
  ]
}

function alternativeName(host: string): Buffer {
  const ip = parseIp(host)
  if (ip === undefined) return der(0x82, Buffer.from(host, 'ascii'))
  const digits = ip.value.toString(16).padStart(ip.family === 'IPv4' ? 8 : 32, '0')
  return der(0x87, Buffer.from(digits, 'hex'))
}

function nameOf(commonName: string): Buffer {
  const pair = der(tag.sequence, identifier(oid.commonName), der(tag.text, Buffer.from(commonName)))
  return der(tag.sequence, der(tag.set, pair))
}

/** `20261121051500Z` */
function timeOf(time: number): Buffer {
  const digits = new Date(time).toISOString().replace(/[-:T]|\.\d+/g, '')
  return der(tag.time, Buffer.from(digits))
}

function identifier(bytes: string): Buffer {
  return der(tag.oid, Buffer.from(bytes, 'hex'))
}

function bits(content: Buffer): Buffer {
  return der(tag.bits, Buffer.concat([Buffer.from([0]), content]))
}

/** Tag, length, content. */
function der(kind: number, ...contents: readonly Buffer[]): Buffer {
  const content = Buffer.concat(contents)
  const { length } = content
  if (length < 0x80) return Buffer.concat([Buffer.from([kind, length]), content])
  const head = length < 0x100 ? [0x81, length] : [0x82, length >> 8, length & 0xff]
  return Buffer.concat([Buffer.from([kind, ...head]), content])
}

function pem(label: string, content: Buffer): string {
  const lines = content.toString('base64').match(/.{1,64}/g) ?? []
  return [`-----BEGIN ${label}-----`, ...lines, `-----END ${label}-----`, ''].join('\n')
}
