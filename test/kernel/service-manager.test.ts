import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { serviceManagerOf } from '../../lib/kernel/service-manager.js'
import { listenForDatagrams } from '../support/datagram-socket.js'

void t.test('notifications reach a socket in the file system and an abstract socket', (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'notify-'))
  for (const path of [join(folder, 'socket'), `@kube-proxy-test-${process.pid}`]) {
    const listener = listenForDatagrams(path)
    const manager = serviceManagerOf({ NOTIFY_SOCKET: path })
    t.equal(manager?.notify('READY=1\nSTATUS=naïve'), undefined)
    t.equal(manager?.notify('STOPPING=1'), undefined)
    t.same(listener.received(), ['READY=1\nSTATUS=naïve', 'STOPPING=1'])
    listener.close()
    t.match(manager?.notify('READY=1'), /error \d+/, 'nobody listens any more')
  }
  rmSync(folder, { recursive: true })
  t.end()
})

void t.test('a notify address that systemd would not set is ignored', (t) => {
  for (const path of ['', '@', '/', 'relative', 'vsock:2:1', '/nul\0byte', `/${'x'.repeat(108)}`]) {
    t.equal(serviceManagerOf({ NOTIFY_SOCKET: path }), undefined, JSON.stringify(path.slice(0, 20)))
  }
  t.end()
})

void t.test('the watchdog is told twice in its time, and only by the process it watches', (t) => {
  const watchdogMs = (more: object) =>
    serviceManagerOf({ NOTIFY_SOCKET: '/run/notify', WATCHDOG_USEC: '20000000', ...more }, 7)
      ?.watchdogMs
  t.equal(watchdogMs({}), 10_000)
  t.equal(watchdogMs({ WATCHDOG_PID: '7' }), 10_000)
  t.equal(watchdogMs({ WATCHDOG_PID: '8' }), undefined, 'meant for the parent')
  t.equal(watchdogMs({ WATCHDOG_USEC: 'soon' }), undefined)
  t.end()
})
