import { endianness } from 'node:os'

/** Netlink speaks in the byte order of the machine. */
export const isLittleEndian = endianness() === 'LE'
