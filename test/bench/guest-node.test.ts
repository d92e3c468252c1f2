import { existsSync } from 'node:fs'
import t from 'tap'
import { busyGuest } from '../../bench/support/guest-node.js'
import { netnsSkip } from '../support/netns.js'
import { umlSkip } from '../support/uml.js'

const tun = existsSync('/dev/net/tun') ? false : 'there is no /dev/net/tun'
const skip = umlSkip || netnsSkip || tun

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
