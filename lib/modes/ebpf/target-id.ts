/**
 * The number of a target list in keys of maps that outlive the tables. FNV-1a: equal for equal
 * names, in every run. Two lists with one number only means that a client may stay with an endpoint
 * of the other one, if that has the same address and port.
 */
export function targetId(id: string): number {
  let hash = 0x811c9dc5
  for (let index = 0; index < id.length; index++) {
    hash = Math.imul(hash ^ id.charCodeAt(index), 0x01000193)
  }
  return hash >>> 0
}
