/** Takeovers from kube-proxy and back with IPVS, in a kernel that has it. Prints TAP. */
import t from 'tap'
import { takeover } from '../../support/takeover.js'

await t.test(
  'L16: kube-proxy in ipvs mode hands over to ipvs mode, and no connection breaks',
  (t) => takeover(t, 'ipvs', 'ipvs'),
)
for (const to of ['iptables', 'userspace'] as const) {
  await t.test(
    `L16: kube-proxy in ipvs mode hands over to ${to} mode and back, and new connections work`,
    (t) => takeover(t, 'ipvs', to),
  )
}
