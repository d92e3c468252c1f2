import t from 'tap'
import { DaemonRequests } from '../../lib/daemon/daemon-requests.js'

const nothing = () => undefined
const log = { debug: nothing, info: nothing, warn: nothing, error: nothing }
const meter = { count: nothing, gauge: nothing, observe: nothing, forget: nothing }

t.test('R01: a mode that asks for a sync gets none before all objects are known', async (t) => {
  let asked = 0
  const requests = new DaemonRequests({
    log,
    forMode: { meter },
    loop: { request: () => asked++ },
    observation: { queued: nothing, changedByOthers: nothing },
  })
  requests.modeContext.resync('somebody else changed the table', { full: true })
  t.equal(asked, 0, 'it would write the rules of a cluster without Services')
  requests.sync()
  t.equal(asked, 1)
  t.ok(requests.takeFull(), 'the first sync writes everything')
  requests.modeContext.resync('somebody else changed the table', { full: true })
  t.equal(asked, 2)
})
