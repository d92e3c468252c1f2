import type { ServerResponse } from 'node:http'

export interface BodyWriter {
  write(text: string): void
  end(): void
  /** Bytes that wait because the client reads slowly. */
  readonly backlog: number
}

export type WriterOf = (response: ServerResponse) => BodyWriter

export const plainWriter: WriterOf = (response) => ({
  write: (text) => void response.write(text),
  end: () => void response.end(),
  get backlog() {
    return response.writableLength
  },
})
