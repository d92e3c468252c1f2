import koffi from 'koffi'
import type { Run } from '../../lib/kernel/command.js'

/**
 * Does in this process what the program `nft` does with `-f -` or with a command: the program hands
 * both to this library. A start of the program costs a hundred times as much. Undefined without the
 * library.
 */
export function nftLibrary(): Run | undefined {
  const library = loaded('libnftables.so.1')
  if (library === undefined) return undefined
  const create = library.func('void *nft_ctx_new(uint32_t flags)')
  const keepOutput = library.func('int nft_ctx_buffer_output(void *context)')
  const keepErrors = library.func('int nft_ctx_buffer_error(void *context)')
  const act = library.func('int nft_run_cmd_from_buffer(void *context, const char *text)')
  const output = library.func('const char *nft_ctx_get_output_buffer(void *context)')
  const errors = library.func('const char *nft_ctx_get_error_buffer(void *context)')
  const free = library.func('void nft_ctx_free(void *context)')
  return (_file, args, { stdin } = {}) => {
    const context: unknown = create(0)
    try {
      keepOutput(context)
      keepErrors(context)
      const code = act(context, stdin ?? args.join(' ')) === 0 ? 0 : 1
      return Promise.resolve({
        code,
        stdout: String(output(context)),
        stderr: String(errors(context)),
      })
    } finally {
      free(context)
    }
  }
}

function loaded(name: string): ReturnType<typeof koffi.load> | undefined {
  try {
    return koffi.load(name)
  } catch {
    return undefined
  }
}
