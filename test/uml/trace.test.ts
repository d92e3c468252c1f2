import { fileURLToPath } from 'node:url'
import t from 'tap'
import { quoted, umlSkip } from '../support/uml.js'
import { tapInUml } from '../support/uml-tap.js'

const inside = fileURLToPath(new URL('./inside/trace.js', import.meta.url))

t.test('trace on a kernel with IPVS', umlSkip ? { skip: umlSkip } : {}, (t) =>
  tapInUml(t, `TAP_TIMEOUT=300 ${quoted(process.execPath)} --enable-source-maps ${quoted(inside)}`),
)
