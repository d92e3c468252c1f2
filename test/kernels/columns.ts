/** The columns of docs/kernels.md: what a run shows of a mode in a kernel. */
export const columns = ['probe', 'load', 'packets', 'hand-over', 'cleanup'] as const
export type Column = (typeof columns)[number]

/** The name of the test that fills a cell. */
export const cellName = (mode: string, column: Column) => `${mode}: ${column}`
