import { KernelError } from '../../errors.js'

/** Kernel limit of names, without the terminating zero. */
const nameLengthMax = 255
/** The longest comment that `nft` accepts. */
const commentLengthMax = 127
const interfaceNameMax = 15

const identifier = /^[A-Za-z_.][A-Za-z0-9_./-]*$/

/** Returns the name if `nft` reads it as one word; throws otherwise. */
export function checkedName(name: string): string {
  if (name.length > nameLengthMax || !identifier.test(name)) refuse('name', name)
  return name
}

/**
 * Any text made fit for the inside of `"…"`: nft knows no escape there, so quotes, backslashes and
 * everything outside printable ASCII become `?`, and a long text is cut.
 */
export function safeComment(text: string): string {
  const printable = text.replace(/[^ !#-[\]-~]/g, '?')
  return printable.length > commentLengthMax
    ? `${printable.slice(0, commentLengthMax - 3)}...`
    : printable
}

/** Returns the name of an interface if it may be written between quotes; throws otherwise. */
export function checkedInterface(name: string): string {
  if (!/^[A-Za-z0-9_.@:-]+$/.test(name) || name.length > interfaceNameMax) {
    refuse('interface name', name)
  }
  return name
}

/** An address or CIDR; canonical text of state/ip.ts always passes. */
export function checkedAddress(text: string): string {
  if (!/^[0-9a-fA-F.:]+(\/\d{1,3})?$/.test(text)) refuse('address', text)
  return text
}

export function checkedPort(port: number): number {
  if (!Number.isInteger(port) || port < 0 || port > 65535) refuse('port', String(port))
  return port
}

function refuse(what: string, text: string): never {
  throw new KernelError(
    'invalid',
    `write nftables rules: ${what} ${JSON.stringify(text)} is not one that nft accepts`,
  )
}
