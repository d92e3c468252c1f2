import { fileURLToPath } from 'node:url'

/** The cases lie beside the sources, not the compiled files. */
export const casesFolder = fileURLToPath(new URL('../../../test/cases', import.meta.url))
