import { fileURLToPath } from 'node:url'
import t from 'tap'
import { quoted, umlSkip } from '../support/uml.js'
import { tapInUml } from '../support/uml-tap.js'

const suite = fileURLToPath(new URL('../conformance/main.js', import.meta.url))

t.test('conformance of ipvs mode', umlSkip ? { skip: umlSkip } : {}, (t) =>
  // A kernel that is itself a process can be slow for a moment.
  tapInUml(t, `CONFORMANCE_PATIENCE=8 ${quoted(process.execPath)} ${quoted(suite)} --mode ipvs`, {
    timeoutMs: 1_200_000,
  }),
)
