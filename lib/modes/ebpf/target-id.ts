/**
 * The number of a target list in keys of maps that outlive the tables. It is a hash (FNV-1a) of the
 * name, so it is the same in every run. If two lists have one number, a client may stay with an
 * endpoint of the other list, but only if that has the same address and port.
 */
export function targetId(id: string): number {
  let hash = 0x811c9dc5
  for (let index = 0; index < id.length; index++) {
    hash = Math.imul(hash ^ id.charCodeAt(index), 0x01000193)
  }
  return hash >>> 0
}
