/**
 * A program that removes the marks of a trace of iptables-legacy, because the kernel does not. The
 * program waits until its input ends, which happens when the tracing process ends or is killed.
 */
import { writeFileSync } from 'node:fs'
import { once } from 'node:events'
import { Iptables } from '../../kernel/iptables.js'
import { unmark, type LegacyMarks } from './legacy-marks.js'

const marks = JSON.parse(process.argv[2] ?? '') as LegacyMarks
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => undefined)
process.stdin.resume()
process.stdout.write('ready\n')
await once(process.stdin, 'end')
writeFileSync(marks.logger.file, marks.logger.before)
const { family } = marks.target
await unmark(await Iptables.open({ family, backend: 'legacy' }), marks)
