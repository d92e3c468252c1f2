import { fileURLToPath } from 'node:url'
import t from 'tap'
import { quoted, umlSkip } from '../support/uml.js'
import { tapInUml } from '../support/uml-tap.js'

const inside = fileURLToPath(new URL('./inside/takeover.js', import.meta.url))

t.test('a node changes hands under IPVS', umlSkip ? { skip: umlSkip } : {}, (t) =>
  tapInUml(t, `TAP_TIMEOUT=300 ${quoted(process.execPath)} --enable-source-maps ${quoted(inside)}`),
)
