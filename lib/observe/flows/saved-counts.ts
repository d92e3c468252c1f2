import { createHash } from 'node:crypto'
import { readlinkSync } from 'node:fs'
import { readFile, rename, rm, writeFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import { makeOwnFolder } from '../../kernel/own-folder.js'
import type { CarriedGrowth } from './messages.js'

/** Numbers with which the next process goes on. */
export interface SavedCounts extends CarriedGrowth {
  /** Connections after this time are in `recent`, or have not been counted. */
  readonly heardUntil: number
  readonly recent: readonly number[]
  /** Connections after this time are not in `recent`, even if one there had the same id. */
  readonly savedAt: number
  /** The time of modes that carried connections. They have counted those that began in it. */
  readonly carried?: TimeSpan | undefined
}

/** In ms since 1970. */
export interface TimeSpan {
  readonly since: number
  readonly until: number
}

const version = 1

/** Files of older versions have no `turnedAway`, no `savedAt` and no `carried`. */
type Saved = Omit<SavedCounts, 'turnedAway' | 'savedAt'> &
  Partial<SavedCounts> & { readonly version: number; readonly kernel: string }

/** Numbers belong to one start of the machine and one network namespace. */
async function kernelIdentity(): Promise<string> {
  const boot = await readFile('/proc/sys/kernel/random/boot_id', 'utf8')
  return createHash('sha256')
    .update(`${boot.trim()} ${readlinkSync('/proc/self/ns/net')}`)
    .digest('hex')
}

export async function saveCounts(file: string, saved: SavedCounts): Promise<void> {
  makeOwnFolder(dirname(file))
  const text = JSON.stringify({ version, kernel: await kernelIdentity(), ...saved })
  // The next process finds the old file or the new one, never half of one.
  await writeFile(`${file}.new`, text, { mode: 0o600 })
  await rename(`${file}.new`, file)
}

/** Undefined when there are no numbers, or when they are of another kernel. */
export async function loadCounts(file: string): Promise<SavedCounts | undefined> {
  const text = await readFile(file, 'utf8').catch(() => undefined)
  if (text === undefined) return undefined
  try {
    const parsed: unknown = JSON.parse(text)
    const { kernel, ...kept } = parsed as Saved
    const { turnedAway = [], savedAt = Infinity } = kept
    const saved = { ...kept, turnedAway, savedAt }
    if (saved.version !== version || kernel !== (await kernelIdentity())) return undefined
    return isSaved({ ...saved }) ? saved : undefined
  } catch {
    return undefined
  }
}

/** It stays beside the file: another process may wait for it. */
export const lockOf = (file: string) => `${file}.lock`

/** Leaves the file of another network namespace, whose proxy goes on with it. */
export async function removeCounts(file: string): Promise<void> {
  if ((await loadCounts(file)) === undefined) return
  for (const path of [file, `${file}.new`, lockOf(file)]) await rm(path, { force: true })
}

const ofEndpoint = {
  numbers: ['opened', 'bytesToEndpoint', 'bytesToClient', 'packetsToEndpoint', 'packetsToClient'],
  texts: ['service', 'protocol', 'endpoint'],
}
const ofService = { numbers: ['refused', 'dropped'], texts: ['service', 'protocol'] }

function isSaved(saved: Readonly<Record<string, unknown>>): boolean {
  const { heardUntil, recent, savedAt, counts, turnedAway, carried } = saved
  return (
    Number.isFinite(heardUntil) &&
    typeof savedAt === 'number' &&
    Array.isArray(recent) &&
    recent.every(Number.isInteger) &&
    areCounts(counts, ofEndpoint) &&
    areCounts(turnedAway, ofService) &&
    (carried === undefined || hasNumbers(carried, ['since', 'until']))
  )
}

function hasNumbers(value: unknown, names: readonly string[]): boolean {
  if (typeof value !== 'object' || value === null) return false
  const each: Readonly<Record<string, unknown>> = { ...value }
  return names.every((name) => typeof each[name] === 'number' && each[name] >= 0)
}

function areCounts(all: unknown, { numbers, texts }: typeof ofService): boolean {
  const isCount = (value: unknown) => {
    if (typeof value !== 'object' || value === null) return false
    const each: Readonly<Record<string, unknown>> = { ...value }
    return hasNumbers(each, numbers) && texts.every((name) => typeof each[name] === 'string')
  }
  return Array.isArray(all) && all.every(isCount)
}
