/** The thread that reads one large manifest. It gives the objects in parts, when it is asked. */
import { parentPort, workerData } from 'node:worker_threads'
import { setUpEngine } from '../engine.js'
import { objectsOfPart, parseManifest } from './manifest-file.js'
import type { LargeManifest, ManifestPart } from './manifest-thread.js'

setUpEngine()

// `workerData` has no type; manifest-thread.ts gives it this value.
const { text, file } = workerData as LargeManifest
const { objects, problems } = parseManifest(text, file)
let told = 0

parentPort?.on('message', () => {
  const next = objects.slice(told, (told += objectsOfPart))
  const part: ManifestPart = { objects: next, problems, isLast: told >= objects.length }
  parentPort?.postMessage(part)
})
