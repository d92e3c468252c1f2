import t from 'tap'
import { Complaints } from '../../lib/modes/complaints.js'

t.test('work that fails again and again warns once, and again after a success', async (t) => {
  const lines: string[] = []
  const note = (level: string) => (fields: object, message: string) =>
    void lines.push(`${level} ${message} ${JSON.stringify(fields)}`)
  const complaints = new Complaints({
    debug: note('debug'),
    info: note('info'),
    warn: note('warn'),
    error: note('error'),
  })
  const told = () => lines.splice(0)
  complaints.warn({ error: 'denied' }, 'look')
  complaints.warn({ error: 'denied' }, 'look')
  complaints.log.warn({ error: 'denied' }, 'look')
  complaints.warn({ error: 'gone' }, 'look')
  complaints.log.info({ error: 'denied' }, 'look')
  t.same(told(), [
    'warn look {"error":"denied"}',
    'debug look {"error":"denied"}',
    'debug look {"error":"denied"}',
    'warn look {"error":"gone"}',
    'info look {"error":"denied"}',
  ])
  complaints.settled()
  complaints.warn({ error: 'denied' }, 'look')
  t.same(told(), ['warn look {"error":"denied"}'])
  for (let count = 0; count < 1_000; count++) complaints.warn({ count }, 'another')
  complaints.warn({ error: 'denied' }, 'look')
  t.equal(told().at(-1), 'warn look {"error":"denied"}', 'not everything is remembered')
})
