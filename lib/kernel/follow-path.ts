import { Bell, pause } from '../async.js'
import { ifPossible, messageOf } from '../errors.js'
import { watch, type FSWatcher } from 'node:fs'
import { readdir, stat } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'

/** Files by path, each with a text that changes whenever the content may have changed. */
export type Snapshot = ReadonlyMap<string, string>

interface FollowOptions {
  /** File names to look at below a folder; a path that is a file itself always counts. */
  readonly matches: (name: string) => boolean
  /**
   * Called first with what is there, then after every change and every failure; awaited. It rejects
   * when a file cannot be read.
   */
  readonly changed: (files: Snapshot) => Promise<void>
  /** Called once when something cannot be read. What was there before counts until it can. */
  readonly failed: (error: unknown) => void
  /** Quiet time after an event before anything is read: editors write in several steps. */
  readonly settleMs?: number
  /** Also polls at this interval, for file systems that send no events. */
  readonly pollMs?: number
}

/**
 * Follows a file or a folder until the signal. Folders are watched, never files: a ConfigMap
 * volume and most editors replace a file by renaming, which a watch on the file does not see (L20).
 */
export async function followPath(
  path: string,
  options: FollowOptions,
  signal: AbortSignal,
): Promise<void> {
  const { settleMs = 150, pollMs = 5000 } = options
  const changed = new Bell()
  const follow = folderWatches(path, changed)
  let previous: Snapshot | undefined
  let problem: string | undefined
  const failed = (error: unknown) => {
    previous = undefined
    if (problem !== messageOf(error)) options.failed(error)
    problem = messageOf(error)
  }
  try {
    follow([dirname(path), path])
    while (!signal.aborted) {
      changed.silence()
      const began = performance.now()
      try {
        const found = await scan(path, options.matches)
        follow([dirname(path), ...found.folders])
        if (!previous || !isSame(previous, found.files)) {
          previous = found.files
          await options.changed(found.files)
        }
        problem = undefined
      } catch (error) {
        failed(error)
      }
      // Scans take at most 2 % of the time, also of many files.
      const restMs = Math.max(pollMs, pollsPerScan * (performance.now() - began))
      await pause(restMs, signal, changed)
      if (changed.isRung) await pause(settleMs, signal)
    }
  } finally {
    follow([])
  }
}

/** Returns what watches these folders, and no others, and rings when the path may have changed. */
function folderWatches(path: string, changed: Bell): (folders: Iterable<string>) => void {
  const watchers = new Map<string, FSWatcher>()
  return (folders) => {
    const wanted = new Set(folders)
    for (const [folder, watcher] of watchers) {
      if (wanted.has(folder)) continue
      watcher.close()
      watchers.delete(folder)
    }
    for (const folder of wanted) {
      if (watchers.has(folder)) continue
      // The folder of the path, /tmp for instance, may hold other files. They do not matter here.
      const only = folder === dirname(path) ? basename(path) : undefined
      const onEvent = (name: string | null) => {
        if (concerns(name, only)) changed.ring()
      }
      const watcher = ifPossible(() =>
        watch(folder, { persistent: false }, (_type, name) => onEvent(name)),
      )
      if (watcher) watchers.set(folder, watcher)
      watcher?.on('error', () => {
        watcher.close()
        // The next poll watches the folder again, if it is there.
        if (watchers.get(folder) === watcher) watchers.delete(folder)
      })
    }
  }
}

const maxDepth = 8
const pollsPerScan = 50

/**
 * Whether an event in a folder can matter. Hidden files do not matter, except names that start with
 * two dots: a ConfigMap volume swaps all its files at once through `..data`. An event without a
 * name may concern any file.
 */
function concerns(name: string | null, only: string | undefined): boolean {
  if (name === null || name.startsWith('..')) return true
  return only === undefined ? !name.startsWith('.') : name === only
}

interface Found {
  readonly files: Snapshot
  readonly folders: readonly string[]
}

/**
 * Every matching file at or below a path. Rejects when it is not known what is there: a folder must
 * not be read, its disk fails, or no file descriptors are left.
 */
export async function scan(path: string, matches: (name: string) => boolean): Promise<Found> {
  const files = new Map<string, string>()
  const folders: string[] = []
  const visit = async (at: string, depth: number): Promise<void> => {
    // `stat` follows links, so a ConfigMap's swap of `..data` shows as another inode and time.
    const found = await stat(at).catch(ifAbsent(undefined))
    if (found?.isFile() === true && (depth === 0 || matches(basename(at)))) {
      files.set(at, `${found.dev}:${found.ino}:${found.size}:${found.mtimeMs}:${found.ctimeMs}`)
    } else if (found?.isDirectory() === true && depth <= maxDepth) {
      folders.push(at)
      for (const name of (await readdir(at).catch(ifAbsent([]))).sort()) {
        if (!name.startsWith('.')) await visit(join(at, name), depth + 1)
      }
    }
  }
  await visit(path, 0)
  return { files, folders }
}

/** Takes an error that means that nothing is there, and throws every other. */
function ifAbsent<T>(nothing: T): (error: NodeJS.ErrnoException) => T {
  return (error) => {
    if (!['ENOENT', 'ENOTDIR', 'ELOOP'].includes(error.code ?? '')) throw error
    return nothing
  }
}

function isSame(left: Snapshot, right: Snapshot): boolean {
  return left.size === right.size && [...left].every(([file, mark]) => right.get(file) === mark)
}
