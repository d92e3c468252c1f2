import t from 'tap'
import { busyGuest, guestSkip } from '../../bench/support/guest-node.js'
import { umlSkip } from '../support/uml.js'

const skip = umlSkip || guestSkip

void t.test(
  'ipvs mode follows changes on a node with a kernel of its own, as the benchmark measures it',
  { skip },
  async (t) => {
    const measured = await busyGuest({ services: 20, seconds: 3, warmSeconds: 0 })
    if (typeof measured === 'string') return t.fail(measured)
    t.ok(measured.p50Ms > 0)
    t.ok(measured.longestMs >= measured.p50Ms)
  },
)
