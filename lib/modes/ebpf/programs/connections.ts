import { Assembler } from '../../../kernel/bpf/assembler.js'
import { counted, stages, statistics, type StatisticsField } from '../layout.js'
import { operation, operations, tcpStates, wanted } from './context.js'
import { findStatistics } from './count.js'
import { findOfSocket, noteBegin, noteFlow } from './flows.js'
import { countOpen, countOver } from './open-connections.js'
import type { ProgramParts } from './view.js'

const done = 'nothing more to count'
const over = 'connection is over'

/** The program that counts what becomes of connections. It changes nothing about them. */
export function countConnections(parts: ProgramParts): Buffer {
  const code = new Assembler()
  const isOurs = code.freshLabel('an operation that counts')
  code.set('r6', 'r1').load('r7', 'u32', 'r6', operation.kind)
  for (const kind of Object.values(operations)) code.jumpIf('r7', '==', kind, isOurs)
  code.jump(done).label(isOurs)
  findOfSocket(code, parts.maps.shared.counted, { how: 'find', none: done, to: 'r8' })
  noteBegin(code, parts, 'r7')
  findStatistics(code, parts, done)
  code.set('r9', 'r0')
  const [changed, measured] = [code.freshLabel('state changed'), code.freshLabel('round trip')]
  code
    .jumpIf('r7', '==', operations.stateChanged, changed)
    .jumpIf('r7', '==', operations.roundTrip, measured)
  askForMore(code)
  findTranslation(code, parts)
  countOpen(code, parts, 'r7')
  code.jump(done).label(measured)
  addRoundTrip(code)
  addTraffic(code)
  code.jump(done).label(changed)
  takeState(code, parts)
  return code.label(done).set('r0', 1).exit().finish()
}

/** Asks for more operations of this socket. What other programs have asked for stays. */
function askForMore(code: Assembler): void {
  code
    .load('r2', 'u32', 'r6', operation.wanted)
    .compute('or', 'r2', wanted.stateChanges | wanted.roundTrips)
    .set('r1', 'r6')
    .call('sock_ops_cb_flags_set')
}

function addRoundTrip(code: Assembler): void {
  code.load('r1', 'u32', 'r6', operation.roundTripTime).compute('shift right', 'r1', 3)
  add(code, 'roundTripTime')
  addOne(code, 'roundTrips')
}

/** Leaves the translation of the connection in r7. */
function findTranslation(code: Assembler, { maps }: ProgramParts): void {
  findOfSocket(code, maps.shared.connections, { how: 'find', none: done, to: 'r7' })
}

function takeState(code: Assembler, parts: ProgramParts): void {
  const [opened, closed] = [code.freshLabel('opened'), code.freshLabel('closed')]
  code
    .load('r7', 'u32', 'r6', operation.stateNow)
    .jumpIf('r7', '==', tcpStates.established, opened)
    .jumpIf('r7', '==', tcpStates.closed, closed)
    .jumpIf('r7', '!=', tcpStates.finWait2, done)
    .load('r1', 'u64', 'r6', operation.bytesReceived)
    .store('u64', 'r8', counted.receivedWhenHalfClosed, 'r1')
    .jump(done)
    .label(opened)
    .store('u32', 'r8', counted.stage, stages.open)
  addOne(code, 'opened')
  noteFlow(code, parts, 'opened')
  code.jump(done).label(closed)
  takeEnd(code, parts)
  code.label(over)
  findTranslation(code, parts)
  countOver(code, parts, 'r7', 0)
}

/** Counts the rest of a connection that is over, or a connection that failed. */
function takeEnd(code: Assembler, parts: ProgramParts): void {
  const failed = code.freshLabel('failed')
  code
    .load('r1', 'u32', 'r8', counted.stage)
    .jumpIf('r1', '==', stages.over, over)
    .store('u32', 'r8', counted.stage, stages.over)
    .jumpIf('r1', '==', stages.connecting, failed)
  addOne(code, 'closed')
  addRetransmits(code)
  countEndSent(code)
  addSent(code)
  countEndReceived(code)
  addReceived(code)
  noteFlow(code, parts, 'ended')
  code.jump(over).label(failed)
  addOne(code, 'failed')
  addRetransmits(code)
  noteFlow(code, parts, 'failed')
}

/** Adds the traffic of a connection while it is open. */
function addTraffic(code: Assembler): void {
  code.load('r1', 'u32', 'r8', counted.stage).jumpIf('r1', '!=', stages.open, done)
  addRetransmits(code)
  code.set('r7', begin)
  addSent(code)
  code.set('r7', 0)
  addReceived(code)
}

/** TCP counts the beginning and the end of each direction like a byte, but they are no data. */
const begin = 1
const beginAndEnd = 2

function countEndSent(code: Assembler): void {
  const { finWait2, timeWait, lastAck, closing } = tcpStates
  const [mayBe, counts] = [code.freshLabel('has an end'), code.freshLabel('end counts')]
  code.set('r7', begin).load('r1', 'u32', 'r6', operation.stateBefore)
  for (const state of [finWait2, timeWait, lastAck, closing]) code.jumpIf('r1', '==', state, mayBe)
  code
    .jump(counts)
    .label(mayBe)
    .load('r1', 'u32', 'r6', operation.sentUpTo)
    .load('r2', 'u32', 'r6', operation.acknowledgedUpTo)
    .jumpIf('r1', '!=', 'r2', counts)
    .set('r7', beginAndEnd)
    .label(counts)
}

/** The kernel counts the end among the received bytes, but not the beginning. */
function countEndReceived(code: Assembler): void {
  const { finWait2, timeWait, closeWait, lastAck, closing } = tcpStates
  const [has, counts] = [code.freshLabel('end came'), code.freshLabel('end counts')]
  code.set('r7', 0).load('r1', 'u32', 'r6', operation.stateBefore)
  for (const state of [timeWait, closeWait, lastAck, closing]) code.jumpIf('r1', '==', state, has)
  code
    .jumpIf('r1', '!=', finWait2, counts)
    // This state ends when the peer's end comes, or at once if nobody reads any more.
    .load('r1', 'u64', 'r6', operation.bytesReceived)
    .load('r2', 'u64', 'r8', counted.receivedWhenHalfClosed)
    .jumpIf('r1', '<=', 'r2', counts)
    .label(has)
    .set('r7', 1)
    .label(counts)
}

function addRetransmits(code: Assembler): void {
  code
    .load('r1', 'u32', 'r6', operation.retransmits)
    .load('r2', 'u32', 'r8', counted.retransmits)
    .store('u32', 'r8', counted.retransmits, 'r1')
    .compute('subtract', 'r1', 'r2')
  add(code, 'retransmits')
}

/** r7 says how many of the counted bytes are no data. */
function addSent(code: Assembler): void {
  code.load('r1', 'u64', 'r6', operation.bytesAcknowledged).compute('subtract', 'r1', 'r7')
  addSince(code, counted.acknowledged, 'bytesToEndpoint')
}

function addReceived(code: Assembler): void {
  code.load('r1', 'u64', 'r6', operation.bytesReceived).compute('subtract', 'r1', 'r7')
  addSince(code, counted.received, 'bytesToClient')
}

/** Adds the growth of r1 since the last time. */
function addSince(code: Assembler, last: number, field: StatisticsField): void {
  code.load('r2', 'u64', 'r8', last).store('u64', 'r8', last, 'r1').compute('subtract', 'r1', 'r2')
  add(code, field)
}

function addOne(code: Assembler, field: StatisticsField): void {
  code.set('r1', 1)
  add(code, field)
}

/** Adds r1 atomically, because an interrupt of the same processor may add to the same number. */
function add(code: Assembler, field: StatisticsField): void {
  code.atomicAdd('r9', statistics[field], 'r1')
}
