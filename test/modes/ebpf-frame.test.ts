import t from 'tap'
import { instructionBytes } from '../../lib/kernel/bpf/instructions.js'
import { Assembler } from '../../lib/kernel/bpf/assembler.js'
import { programs, socketHooks } from '../../lib/modes/ebpf/programs/programs.js'
import type { FamilyMaps, ProgramParts, SharedMaps } from '../../lib/modes/ebpf/programs/view.js'

/**
 * Programs write only whole slots of the stack. Without CAP_PERFMON, kernels from 6.1.77 to 6.12
 * refuse a store into a part of a slot if they know the number in it ("attempt to corrupt spilled
 * pointer on stack"). Which numbers they know differs by version.
 */

const map = { fd: 3 }
const family: FamilyMaps = { frontends: map, services: map, backends: map, members: map }
const shared: SharedMaps = {
  ...{ connections: map, datagrams: map, affinity: map, udpSockets: map },
  ...{ open: map, counted: map, statistics: map, refusals: map },
}
const parts: ProgramParts = {
  maps: { IPv4: family, IPv6: family, shared },
  ...{ hostCookie: 1n, sockets: 'node', connectedUdp: true, openNumber: 7, flows: undefined },
}

const frameRegister = 10
const helper = 0x85
const exit = 0x95
const wide = 0x18

/** By register: how far from the end of the frame it points, or undefined if not into the frame. */
type Pointers = readonly (number | undefined)[]

/** The pointers after an instruction. */
function after(before: Pointers, code: Buffer): Pointers {
  const [operation, to] = [code.readUInt8(0), code.readUInt8(1) & 0x0f]
  const from = before[code.readUInt8(1) >> 4]
  const number = code.readInt32LE(4)
  const kind = operation & 0x07
  if (operation === helper)
    return before.map((each, register) => (register <= 5 ? undefined : each))
  if (kind >= 2 && kind <= 5) return before
  const old = before[to]
  const moved = operation === 0x07 && old !== undefined ? old + number : undefined
  return before.with(to, operation === 0xbf ? from : moved)
}

/** The places where the program may continue after an instruction. */
function next(code: Buffer, at: number): readonly number[] {
  const operation = code.readUInt8(0)
  const offset = code.readInt16LE(2)
  if (operation === exit) return []
  if (operation === wide) return [at + 2]
  if ((operation & 0x07) !== 0x05 || operation === helper) return [at + 1]
  return operation === 0x05 ? [at + 1 + offset] : [at + 1, at + 1 + offset]
}

/** Stores into the frame that are not a whole slot, on every way through the program. */
function partialStores(program: Buffer): readonly string[] {
  const faults = new Set<string>()
  const start: Pointers = Array.from({ length: 11 }, (_, register) =>
    register === frameRegister ? 0 : undefined,
  )
  const ways: { readonly at: number; readonly pointers: Pointers }[] = [{ at: 0, pointers: start }]
  const seen = new Set<string>()
  for (let way = ways.pop(); way; way = ways.pop()) {
    const { at, pointers } = way
    const id = `${at} ${pointers.join()}`
    if (seen.has(id)) continue
    seen.add(id)
    const code = program.subarray(at * instructionBytes, (at + 1) * instructionBytes)
    const operation = code.readUInt8(0)
    const base = pointers[code.readUInt8(1) & 0x0f]
    const isStore = (operation & 0x07) === 0x02 || (operation & 0x07) === 0x03
    if (isStore && base !== undefined) {
      const place = base + code.readInt16LE(2)
      const isWhole = (operation & 0x18) === 0x18 && place % 8 === 0
      if (!isWhole) faults.add(`instruction ${at} at ${place}`)
    }
    const left = after(pointers, code)
    for (const place of next(code, at)) ways.push({ at: place, pointers: left })
  }
  return [...faults]
}

t.test('the frame is written in whole slots only', async (t) => {
  for (const sockets of ['all', 'node'] as const) {
    for (const connectedUdp of [true, false]) {
      for (const hook of socketHooks) {
        for (const flows of [undefined, { begun: map, ring: map, lost: map }]) {
          const code = programs[hook]({ ...parts, sockets, connectedUdp, flows })
          const name = `${hook}, ${sockets}, connected UDP: ${connectedUdp}, flows: ${!!flows}`
          t.same(partialStores(code), [], name)
        }
      }
    }
  }
})

t.test('a store into a part of a slot is found, also by way of another register', async (t) => {
  const code = new Assembler()
    .store('u64', 'frame', -8, 1)
    .frameAddress('r8', -24)
    .jumpIf('r1', '==', 0, 'end')
    .store('u32', 'frame', -8, 1)
    .store('u8', 'r8', 3, 1)
    .store('u64', 'r8', 4, 1)
    .label('end')
    .set('r8', 'r1')
    .store('u8', 'r8', 3, 1)
    .exit()
  t.same(partialStores(code.finish()), [
    'instruction 4 at -8',
    'instruction 5 at -21',
    'instruction 6 at -20',
  ])
})
