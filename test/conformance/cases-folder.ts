import { fileURLToPath } from 'node:url'

/** The folder of the cases, which is beside the sources and not beside the compiled files. */
export const casesFolder = fileURLToPath(new URL('../../../test/cases', import.meta.url))
