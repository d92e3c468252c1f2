/** What the proxy leaves in folders of the node is for its own user alone. */
import { execFileSync } from 'node:child_process'
import { chmodSync, mkdtempSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { makeOwnFolder } from '../../lib/kernel/own-folder.js'
import { loadLibc } from '../../lib/kernel/sockets/libc.js'
import { PacketServer } from '../../lib/kernel/sockets/packet-socket.js'
import { saveCounts } from '../../lib/observe/flows/saved-counts.js'

/** A folder that everybody may use, as an operator may have made it; short enough for a socket. */
function openFolder(t: Test): string {
  const folder = mkdtempSync(join(tmpdir(), 'own-'))
  t.teardown(() => rmSync(folder, { recursive: true }))
  chmodSync(folder, 0o777)
  return folder
}

/** The rights of a file, however much the process would give away. */
async function rightsOf(path: string, make: () => unknown): Promise<string> {
  const mask = process.umask(0)
  await Promise.resolve(make()).finally(() => process.umask(mask))
  return (statSync(path).mode & 0o777).toString(8)
}

t.test('no other user can read the numbers of --flows', async (t) => {
  const file = join(openFolder(t), 'flows.json')
  const saved = { heardUntil: 0, savedAt: 0, recent: [], counts: [], turnedAway: [] }
  t.equal(await rightsOf(file, () => saveCounts(file, saved)), '600')
})

t.test('no other user can ask for a take-over', async (t) => {
  const libc = await loadLibc()
  const path = join(openFolder(t), 'takeover.sock')
  const servers: PacketServer[] = []
  t.teardown(() => servers.forEach((server) => server.close()))
  const rights = await rightsOf(path, () =>
    servers.push(new PacketServer(libc, path, (socket) => socket.close())),
  )
  t.equal(rights, '600')
})

const skip = process.getuid?.() === 0 ? false : 'mounts a file system, so it needs root'

t.test('a folder on a read-only file system is not told as missing', { skip }, async (t) => {
  const folder = openFolder(t)
  execFileSync('mount', ['-t', 'tmpfs', '-o', 'ro', 'tmpfs', folder])
  t.teardown(() => execFileSync('umount', [folder]))
  for (const path of ['one', 'one/two']) {
    t.throws(() => makeOwnFolder(join(folder, path)), { code: 'EROFS' }, path)
  }
  const file = join(folder, 'run', 'flows.json')
  const saved = { heardUntil: 0, savedAt: 0, recent: [], counts: [], turnedAway: [] }
  await t.rejects(saveCounts(file, saved), { code: 'EROFS' })
})
