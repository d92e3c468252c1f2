// Runs one shell command in User Mode Linux, a kernel that has IPVS, on this machine's files:
//   node scripts/uml-run.mjs 'modprobe ip_vs && ipvsadm -Ln'
import { runInUml, umlSkip } from '../build/test/support/uml.js'

const [command] = process.argv.slice(2)
if (command === undefined || umlSkip) {
  console.error(umlSkip || "usage: node scripts/uml-run.mjs 'COMMAND'")
  process.exit(2)
}
const timeoutMs = Number(process.env.UML_SECONDS ?? 300) * 1000
const memory = process.env.UML_MEMORY ?? '1G'
const onLine = (line) => console.log(line)
const { code } = await runInUml(command, { timeoutMs, memory, onLine }).catch((error) => {
  // A message between results of TAP must be a comment.
  console.error(error.message.replace(/^/gm, '# '))
  return { code: 1 }
})
process.exitCode = code
