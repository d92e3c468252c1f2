import { startThread } from '../engine.js'
import type { ManifestFile, ManifestObject } from './manifest-file.js'

export interface LargeManifest {
  readonly text: string
  readonly file: string
}

export interface ManifestPart extends ManifestFile {
  readonly isLast: boolean
}

/**
 * Reads a manifest as `parseManifest` does, but in a thread of its own: YAML of some MB takes
 * seconds. Rejects if the thread cannot do it, and at the signal.
 */
export async function parseInThread(
  manifest: LargeManifest,
  signal: AbortSignal,
): Promise<ManifestFile> {
  signal.throwIfAborted()
  const worker = startThread(new URL('./manifest-worker.js', import.meta.url), manifest)
  const stop = () => void worker.terminate()
  signal.addEventListener('abort', stop)
  const objects: ManifestObject[] = []
  try {
    return await new Promise((resolve, reject) => {
      worker.on('message', (part: ManifestPart) => {
        objects.push(...part.objects)
        if (part.isLast) resolve({ objects, problems: part.problems })
        else worker.postMessage('more')
      })
      worker.on('error', reject)
      worker.on('exit', () => reject(new Error(`the thread that read ${manifest.file} has ended`)))
      worker.postMessage('more')
    })
  } finally {
    signal.removeEventListener('abort', stop)
    await worker.terminate()
  }
}
