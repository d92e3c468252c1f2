import { fileURLToPath } from 'node:url'
import t from 'tap'
import { quoted, umlSkip } from '../support/uml.js'
import { tapInUml } from '../support/uml-tap.js'

const inside = (name: string) => fileURLToPath(new URL(`./inside/${name}.js`, import.meta.url))
const parts = ['ipvs-mode', 'packets', 'others', 'switching', 'one-port'].map(inside)

// One boot for all, one after the other: they share the machine's first and only namespace.
t.test('ipvs mode on a kernel with IPVS', umlSkip ? { skip: umlSkip } : {}, (t) =>
  tapInUml(
    t,
    `code=0
    for part in ${parts.map(quoted).join(' ')}; do
      TAP_TIMEOUT=300 ${quoted(process.execPath)} --enable-source-maps "$part" || code=1
    done
    exit $code`,
    { timeoutMs: 900_000 },
  ),
)
