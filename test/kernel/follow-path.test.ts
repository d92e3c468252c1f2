import fs, { rmSync, symlinkSync, writeFileSync, type FSWatcher } from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
import { join } from 'node:path'
import t from 'tap'
import { messageOf } from '../../lib/errors.js'
import { followPath } from '../../lib/kernel/follow-path.js'

const until = async (isTrue: () => boolean) => {
  while (!isTrue()) await new Promise((resolve) => setTimeout(resolve, 5))
}

/** Keeps the watchers that are made until the test ends. */
function watchersOf(t: { teardown(act: () => void): unknown }) {
  const made: { folder: string; watcher: FSWatcher }[] = []
  const { watch } = fs
  const noted = (...args: unknown[]) => {
    const watcher = Reflect.apply(watch, fs, args) as FSWatcher
    made.push({ folder: String(args[0]), watcher })
    return watcher
  }
  Object.assign(fs, { watch: noted })
  syncBuiltinESMExports()
  t.teardown(() => {
    Object.assign(fs, { watch })
    syncBuiltinESMExports()
  })
  return made
}

t.test('a folder whose watch failed is watched again, and its events count', async (t) => {
  const folder = t.testdir({ 'a.yaml': '' })
  const made = watchersOf(t)
  const stop = new AbortController()
  const seen: number[] = []
  const watched = () => made.filter((each) => each.folder === folder)
  const changed = (files: ReadonlyMap<string, string>) =>
    Promise.resolve(void seen.push(files.size))
  const failed = (error: unknown) => t.error(error)
  const options = { matches: () => true, changed, failed, settleMs: 1, pollMs: 20 }
  const following = followPath(folder, options, stop.signal)
  await until(() => seen.length === 1)
  t.equal(watched().length, 1)
  watched()[0]?.watcher.emit('error', new Error('EIO'))
  await until(() => watched().length === 2)
  let isHeard = false
  watched()[1]?.watcher.on('change', () => (isHeard = true))
  writeFileSync(join(folder, 'b.yaml'), '')
  await until(() => isHeard && seen.at(-1) === 2)
  stop.abort()
  await following
  t.equal(watched().length, 2, 'a watch that works stays')
})

t.test('what cannot be read is told once, and what is there again when it can be', async (t) => {
  const folder = t.testdir({ 'a.yaml': '' })
  const stop = new AbortController()
  const told: string[] = []
  const options = {
    matches: () => true,
    changed: (files: ReadonlyMap<string, string>) =>
      Promise.resolve(void told.push(`${files.size} files`)),
    failed: (error: unknown) => told.push(messageOf(error).slice(0, 12)),
    ...{ settleMs: 1, pollMs: 5 },
  }
  const following = followPath(folder, options, stop.signal)
  await until(() => told.length === 1)
  // A link to nothing, and a link to itself, are no files. No name has 300 characters.
  symlinkSync('nothing', join(folder, 'b.yaml'))
  symlinkSync('c.yaml', join(folder, 'c.yaml'))
  symlinkSync('a.yaml/d', join(folder, 'd.yaml'))
  symlinkSync('x'.repeat(300), join(folder, 'x.yaml'))
  await until(() => told.length === 2)
  await new Promise((resolve) => setTimeout(resolve, 100))
  rmSync(join(folder, 'x.yaml'))
  await until(() => told.length === 3)
  stop.abort()
  await following
  t.same(told, ['1 files', 'ENAMETOOLONG', '1 files'])
})
