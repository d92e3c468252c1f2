import { endianness } from 'node:os'

/** Numbers in netlink messages have the byte order of the machine. */
export const isLittleEndian = endianness() === 'LE'
