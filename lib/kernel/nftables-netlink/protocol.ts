/** Numbers of linux/netfilter/nf_tables.h and nfnetlink.h, as far as this ruleset needs them. */

const subsystem = 10

export const batch = { begin: 16, end: 17, resource: subsystem } as const

export const messages = {
  newTable: type(0),
  getTable: type(1),
  deleteTable: type(2),
  newChain: type(3),
  getChain: type(4),
  deleteChain: type(5),
  newRule: type(6),
  getRule: type(7),
  deleteRule: type(8),
  newSet: type(9),
  getSet: type(10),
  deleteSet: type(11),
  newElement: type(12),
  getElement: type(13),
  deleteElement: type(14),
  newGeneration: type(15),
  getGeneration: type(16),
} as const

/** Bytes of nfgenmsg before a message's attributes. */
export const genericBytes = 4

export const families = { ip: 2, ip6: 10 } as const

export const tableAttributes = { name: 1, flags: 2, userData: 6 } as const
export const tableFlags = { dormant: 1 } as const
export const chainAttributes = {
  table: 1,
  name: 3,
  hook: 4,
  policy: 5,
  type: 7,
  userData: 12,
} as const
export const policies = { accept: 1 } as const
export const hookAttributes = { number: 1, priority: 2 } as const
export const hooks = { prerouting: 0, input: 1, forward: 2, output: 3, postrouting: 4 } as const
export const ruleAttributes = {
  table: 1,
  chain: 2,
  expressions: 4,
  userData: 7,
} as const
export const setAttributes = {
  table: 1,
  name: 2,
  flags: 3,
  keyType: 4,
  keyLength: 5,
  dataType: 6,
  dataLength: 7,
  description: 9,
  id: 10,
  timeout: 11,
  userData: 13,
  expression: 17,
  expressions: 18,
} as const
export const setFlags = {
  anonymous: 1,
  constant: 2,
  interval: 4,
  map: 8,
  timeout: 16,
  evaluated: 32,
} as const
export const elementListAttributes = { table: 1, set: 2, elements: 3, setId: 4 } as const
export const elementAttributes = {
  key: 1,
  data: 2,
  flags: 3,
  timeout: 4,
  expiration: 5,
  userData: 6,
} as const
export const intervalEnd = 1
export const generationAttributes = { id: 1, process: 2, program: 3 } as const

/** The type of an item in a list, and the two parts of an expression. */
export const listItem = 1
export const expressionAttributes = { name: 1, data: 2 } as const
/** A datum: bytes, or a verdict of a code and a chain. */
export const datum = { value: 1, verdict: 2, verdictCode: 1, verdictChain: 2 } as const
export const verdictCodes = { drop: 0, jump: -3, goto: -4, return: -5 } as const
export const verdictRegister = 0
export const verdictDataType = 0xffffff00

/** Type numbers belong to nft, not to the kernel: they tell a later `nft list` how to print. */
export const dataTypes = {
  integer: 4,
  ipv4_addr: 7,
  ipv6_addr: 8,
  inet_proto: 12,
  inet_service: 13,
} as const
const bitsOfType = 6

export function concatenatedType(types: readonly number[]): number {
  return types.reduce((whole, one) => (whole << bitsOfType) | one, 0)
}

/**
 * The register at a byte offset of a key. Registers of 16 bytes are counted from 1. Registers of 4
 * bytes, for all other offsets, are counted from 8.
 */
export function registerAt(offset: number): number {
  return offset % 16 === 0 ? 1 + offset / 16 : 8 + offset / 4
}

/** Type-length-value triples in which nft keeps comments and hints for printing. */
export function userData(...entries: readonly (readonly [type: number, value: Uint8Array])[]) {
  return Buffer.concat(entries.map(([tag, value]) => Buffer.from([tag, value.length, ...value])))
}

export const userDataTypes = {
  /** The same number in tables, chains, rules and elements. */
  comment: 0,
  elementFlags: 1,
  setKeyByteOrder: 0,
  setDataByteOrder: 1,
  setMergeElements: 2,
  setComment: 7,
} as const

/** The numbers of nft for the byte order of a set's key. */
export const byteOrders = { host: 1, network: 2 } as const

/** A comment as nft stores it, with its closing zero. */
export const commentBytes = (text: string) => Buffer.from(`${text}\0`)

function type(message: number): number {
  return (subsystem << 8) | message
}

export function isTablesMessage(messageType: number): boolean {
  return messageType >> 8 === subsystem
}
