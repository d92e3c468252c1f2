import t from 'tap'
import { cgroupSkip } from '../support/cgroup-client.js'
import { changesOfMode } from '../support/mode-change.js'
import { skip } from './proxy-world.js'

/** A machine that does much else answers late. */
const pace = { patienceMs: 60_000 }

// What userspace mode carries ends with it, so after it all are served anew.
t.test(
  'L16: from mode to mode and back to ebpf mode, no connection is lost',
  { skip: skip || cgroupSkip },
  (t) =>
    changesOfMode(
      t,
      ['nftables', 'ebpf', 'iptables', 'ebpf', 'userspace', 'ebpf', 'nftables'],
      pace,
    ),
)
