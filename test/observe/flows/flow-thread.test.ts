/** The thread that counts connections may end at any moment. */
import { spawnSync } from 'node:child_process'
import t from 'tap'

const file = new URL('../../../lib/observe/flows/flow-thread.js', import.meta.url).href

t.test('a thread that ends while the proxy stops does not end the proxy early', (t) => {
  // Without its settings the thread ends by itself.
  const script = `const { FlowThread } = await import('${file}')
    const thread = new FlowThread(undefined, ({ reason }) => console.log(reason))
    await thread.leave()
    console.log('left')`
  const argv = ['--input-type=module', '--eval', script]
  const { status, stdout } = spawnSync(process.execPath, argv, { encoding: 'utf8' })
  t.match(stdout, /left/)
  t.equal(status, 0)
  t.end()
})
