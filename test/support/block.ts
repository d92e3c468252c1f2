const nothing = new Int32Array(new SharedArrayBuffer(4))

/** Blocks the event loop, as much work does, without the processor time of work. */
export function blockFor(ms: number): void {
  Atomics.wait(nothing, 0, 0, ms)
}
