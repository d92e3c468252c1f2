import { fileURLToPath } from 'node:url'
import t from 'tap'
import { quoted, umlPatience, umlSkip } from '../support/uml.js'
import { tapInUml } from '../support/uml-tap.js'

const suite = fileURLToPath(new URL('../conformance/main.js', import.meta.url))

t.test('conformance of ipvs mode', umlSkip ? { skip: umlSkip } : {}, (t) =>
  tapInUml(t, `${umlPatience} ${quoted(process.execPath)} ${quoted(suite)} --mode ipvs`, {
    timeoutMs: 1_200_000,
  }),
)
