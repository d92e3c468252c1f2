import { numberAt, textAt, textMapAt, type Json, type JsonObject } from '../json.js'
import { ApiError, badRequest } from '../status.js'
import { messages, type MessageField } from './messages.js'

export const protobufType = 'application/vnd.kubernetes.protobuf'

/** The first bytes of every body of that type. */
const magic = Buffer.from('k8s\0', 'latin1')

/**
 * The object in a protobuf body, as JSON. kubectl's `create` commands and some Go clients send such
 * bodies. Answers are always JSON, which all of them accept.
 */
export function decodeProtobuf(body: Buffer): JsonObject {
  if (!body.subarray(0, magic.length).equals(magic)) {
    throw badRequest('the body is no Kubernetes protobuf: it does not begin with k8s\\0')
  }
  try {
    const envelope = decodeMessage(body.subarray(magic.length), 'Unknown')
    const apiVersion = textAt(envelope, 'typeMeta', 'apiVersion')
    const kind = textAt(envelope, 'typeMeta', 'kind')
    const raw = Buffer.from(textAt(envelope, 'raw'), 'base64')
    const full = `${apiVersion}/${kind}`
    const message = messages.has(full) ? full : kind
    if (!messages.has(message)) {
      throw new ApiError(
        415,
        'UnsupportedMediaType',
        `this server reads ${kind} objects as JSON or YAML only; add --dry-run=client -o yaml to the command, and give what it prints to kubectl apply -f -`,
      )
    }
    return { apiVersion, kind, ...decodeMessage(raw, message) }
  } catch (cause) {
    if (cause instanceof RangeError) throw badRequest('the protobuf body is cut or broken')
    throw cause
  }
}

function decodeMessage(bytes: Buffer, name: string): JsonObject {
  const fields = messages.get(name) ?? []
  const reader = new Reader(bytes)
  const result = new Map<string, Json>()
  while (!reader.isAtEnd) {
    const tag = reader.varint()
    const wire = tag & 7
    const field = fields.find(({ number }) => number === tag >>> 3)
    const value = reader.value(wire)
    if (field === undefined || value === undefined) continue
    add(result, field, value)
  }
  return Object.fromEntries(result)
}

function add(
  result: Map<string, Json>,
  { name, type }: MessageField,
  value: number | Buffer,
): void {
  const present = result.get(name)
  if (type.endsWith('[]')) {
    const item = decodeValue(value, type.slice(0, -2))
    result.set(name, [...(Array.isArray(present) ? (present as Json[]) : []), item])
  } else if (type === 'textMap' || type === 'bytesMap') {
    if (typeof value === 'number') throw new RangeError('a map entry is no message')
    const entry = decodeMessage(value, type === 'textMap' ? 'TextEntry' : 'BytesEntry')
    result.set(name, { ...textMapAt(present), [textAt(entry, 'key')]: textAt(entry, 'value') })
  } else {
    const decoded = decodeValue(value, type)
    // Go writes the zero value of every field that is no pointer; JSON leaves it out.
    if (decoded !== '' && decoded !== 0 && decoded !== false && decoded !== null) {
      result.set(name, decoded)
    }
  }
}

function decodeValue(value: number | Buffer, type: string): Json {
  if (typeof value === 'number') return type === 'bool' ? value !== 0 : value
  switch (type) {
    case 'text':
      return value.toString('utf8')
    case 'bytes':
      return value.toString('base64')
    case 'IntOrString': {
      const { type: kind, intVal, strVal } = decodeMessage(value, type)
      return (kind === 1 ? strVal : intVal) ?? null
    }
    case 'time': {
      const time = decodeMessage(value, 'Timestamp')
      const seconds = numberAt(time, 'seconds') ?? 0
      const micros = Math.floor((numberAt(time, 'nanos') ?? 0) / 1000)
      const head = new Date(seconds * 1000).toISOString().slice(0, 19)
      return seconds === 0 ? null : `${head}.${String(micros).padStart(6, '0')}Z`
    }
    default:
      return decodeMessage(value, type)
  }
}

/** Protobuf's wire format; throws RangeError where the bytes end too early. */
class Reader {
  readonly #bytes: Buffer
  #at = 0

  constructor(bytes: Buffer) {
    this.#bytes = bytes
  }

  get isAtEnd(): boolean {
    return this.#at >= this.#bytes.length
  }

  varint(): number {
    let value = 0n
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const byte = this.#bytes.readUInt8(this.#at++)
      value |= BigInt(byte & 0x7f) << shift
      if (byte < 0x80) return Number(BigInt.asIntN(64, value))
    }
    throw new RangeError('a number does not end')
  }

  bytes(): Buffer {
    const length = this.varint()
    const end = this.#at + length
    if (length < 0 || end > this.#bytes.length) throw new RangeError('a field is cut')
    const found = this.#bytes.subarray(this.#at, end)
    this.#at = end
    return found
  }

  /** The next value. Values of fixed width are skipped, because no field here has one. */
  value(wire: number): number | Buffer | undefined {
    if (wire === 0) return this.varint()
    if (wire === 2) return this.bytes()
    if (wire !== 1 && wire !== 5) throw new RangeError(`unknown wire type ${wire}`)
    this.#at += wire === 1 ? 8 : 4
    return undefined
  }
}
