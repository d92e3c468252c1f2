import type { ServerResponse } from 'node:http'
import t from 'tap'
import { event, follow, listOf, type Script } from './support/scripted-server.js'
import { untilTrue } from '../support/until.js'

void t.test('events of unknown types are skipped, and each type is reported once', async (t) => {
  const seen = await follow(t, {
    list: () => listOf('5', 'a'),
    watch(answer, version) {
      if (version !== '5') {
        answer.flushHeaders()
        return
      }
      for (let i = 6; i < 16; i++) answer.write(event('RENAMED', 'a', String(i)))
      answer.write(event('ADDED', 'b', '16'))
      answer.write(event('RENAMED', 'a', '17'))
      answer.end()
    },
  })
  await untilTrue(() => seen.watches.length >= 2)
  t.strictSame([...seen.names], ['a', 'b'], 'nothing that follows is lost')
  t.strictSame(seen.watches, ['5', '17'], 'stepped over, not read again')
  t.equal(seen.lists.length, 1)
  t.strictSame(seen.failures, [
    'watch /api/v1/services: events of the unknown type "RENAMED" are skipped',
  ])
})

for (const [what, line] of [
  ['no JSON', '{"type":"ADDED","object":{"metad\n'],
  ['not UTF-8', Buffer.from([0xff, 0xfe, 0x0a])],
  ['a number', '42\n'],
  ['no type', '{"object":{"metadata":{"name":"b"}}}\n'],
  ['no object', '{"type":"MODIFIED"}\n'],
  ['no name', '{"type":"DELETED","object":{"metadata":{"resourceVersion":"7"}}}\n'],
] as const) {
  void t.test(`an event with ${what} causes a new list that skips it`, async (t) => {
    const seen = await follow(t, {
      list: (number) => (number === 1 ? listOf('5', 'a') : listOf('9', 'a', 'b')),
      watch(answer, version) {
        // The server keeps the bad event, so a client that resumes before it gets it again.
        if (version === '5' || version === '6') {
          answer.write(event('MODIFIED', 'a', '6'))
          answer.write(line)
        } else answer.write(event('ADDED', 'c', '10'))
      },
    })
    await untilTrue(() => seen.names.has('c'))
    t.strictSame([...seen.names].sort(), ['a', 'b', 'c'])
    t.equal(seen.lists.length, 2)
    t.match(seen.failures.join('\n'), /all objects are listed again/)
    t.equal(seen.failures.length, 1)
  })
}

void t.test('endless bad events cause lists at growing intervals', async (t) => {
  const seen = await follow(
    t,
    {
      list: (number) => listOf(String(number * 10), 'a'),
      watch(answer, version) {
        answer.write(event('MODIFIED', 'a', String(Number(version) + 1)))
        answer.write('?\n')
      },
    },
    { firstRetryMs: 10, longestErrorRetryMs: 100_000 },
  )
  await untilTrue(() => seen.lists.length >= 6)
  // Waits of 10, 20, … ms, each shortened to its half at most.
  const waits = seen.lists.slice(1).map((at, index) => at - (seen.lists[index] ?? 0))
  for (const [index, wait] of waits.entries()) {
    t.ok(wait >= 10 * 2 ** index * 0.5 - 1, `wait ${index + 1} took ${Math.round(wait)} ms`)
  }
})

void t.test('a version that the server cannot continue from causes a new list', async (t) => {
  for (const [status, attempts] of [
    [400, 1],
    [500, 5],
  ] as const) {
    const seen = await follow(t, {
      list: (number) => listOf(number === 1 ? 'odd' : '9', 'a'),
      watch(answer, version) {
        if (version === 'odd') answer.writeHead(status).end()
        else answer.write(event('ADDED', 'b', '10'))
      },
    })
    await untilTrue(() => seen.names.has('b'))
    t.equal(seen.synced(), 2)
    t.equal(seen.watches.filter((version) => version === 'odd').length, attempts)
  }
})

for (const [what, body] of [
  ['a page without a line break', '<html>Please log in</html>'],
  ['nothing', ''],
] as const) {
  void t.test(`watches that are answered with ${what} are told, and lists go on`, async (t) => {
    const seen = await follow(t, {
      list: (number) => (number === 1 ? listOf('5', 'a') : listOf('9', 'a', 'b')),
      watch: (answer) => answer.end(body),
    })
    await untilTrue(() => seen.names.has('b'))
    t.match(seen.failures[0], 'watch /api/v1/services: it ended at once, without an event')
    t.ok(seen.watches.length >= 5, 'one such watch is no reason for a list')
  })
}

void t.test('a cache that sends the first page of a list for each is told', async (t) => {
  const page = { metadata: { resourceVersion: '5', continue: 'more' }, items: [] }
  const seen = await follow(t, {
    list: (number) => (number < 5 ? JSON.stringify(page) : listOf('9', 'a')),
    watch: (answer) => answer.flushHeaders(),
  })
  await untilTrue(() => seen.names.has('a'))
  const told = 'list /api/v1/services: the same page comes again and again'
  t.strictSame(seen.failures, [told, told])
})

for (const [what, body, told] of [
  [
    'a page',
    '<html>Please log in</html>',
    'the answer (text/html) of 26 bytes is not JSON; look at',
  ],
  ['nothing', '', 'the answer (text/html) of 0 bytes is not JSON; look at'],
] as const) {
  void t.test(`a server that answers lists with ${what} is named`, async (t) => {
    const seen = await follow(t, {
      list: (_, answer) => {
        answer.setHeader('content-type', 'text/html')
        return body
      },
      watch: (answer) => answer.flushHeaders(),
    })
    await untilTrue(() => seen.failures.length > 0)
    t.match(seen.failures[0], /^GET http:\/\/127\.0\.0\.1:\d+\/api\/v1\/services: /)
    t.match(seen.failures[0], told)
  })
}

void t.test('what a refusal says in plain text is told', async (t) => {
  const said = 'Client sent an HTTP request to an HTTPS server.'
  const seen = await follow(t, {
    list: () => listOf('5', 'a'),
    watch: (answer) => answer.writeHead(400, { 'content-type': 'text/plain' }).end(`${said}\n`),
  })
  await untilTrue(() => seen.failures.length > 0)
  t.match(seen.failures[0], /services: 400 Bad Request: Client sent .* to an HTTPS server\.$/)
})

void t.test('a redirect is told with its target', async (t) => {
  const seen = await follow(t, {
    list: () => listOf('5', 'a'),
    watch: (answer) => answer.writeHead(307, { location: 'https://other:6443/' }).end(),
  })
  await untilTrue(() => seen.failures.length > 0)
  t.match(seen.failures[0], '307 Temporary Redirect to https://other:6443/, which is not followed')
})

void t.test(
  'a connection that ends in the middle of a watch is told with the reason',
  async (t) => {
    const seen = await follow(t, {
      list: () => listOf('5', 'a'),
      watch(answer, _version, number) {
        answer.write(event('ADDED', 'b', '6'))
        if (number === 1) answer.socket?.resetAndDestroy()
        if (number === 2) answer.socket?.destroySoon()
      },
    })
    await untilTrue(() => seen.watches.length >= 3)
    const what = /^GET http:\/\/127.0.0.1:\d+\/api\/v1\/services: /
    t.match(seen.failures, [what, what])
    t.match(
      seen.failures.join('\n'),
      /: read ECONNRESET\n.*: the connection was closed in the middle/,
    )
  },
)

void t.test('a server that returns with an older state is listed again', async (t) => {
  // The server accepts a watch from a future version and sends nothing, as the real one does.
  let isRestored = false
  const seen = await follow(t, {
    list: () => (isRestored ? listOf('50', 'b') : listOf('90', 'a', 'gone')),
    watch(answer, version) {
      if (Number(version) > 60) {
        isRestored = true
        answer.write(event('MODIFIED', 'a', '100'), () => answer.destroy())
      } else answer.write(event('ADDED', 'c', '51'))
    },
  })
  await untilTrue(() => seen.names.has('c'))
  t.strictSame([...seen.names].sort(), ['b', 'c'])
  t.equal(seen.synced(), 2)
  t.match(seen.failures.join('\n'), 'the server is at version 50, behind 100 that it had')
})

for (const type of ['BOOKMARK', 'MODIFIED', 'DELETED']) {
  void t.test(`${type} of an older version causes a new list`, async (t) => {
    const seen = await follow(t, {
      list: (number) => (number === 1 ? listOf('90', 'a') : listOf('50', 'b')),
      watch(answer, version) {
        if (version === '90') answer.write(event(type, 'a', '45'))
        else answer.write(event('ADDED', 'c', '51'))
      },
    })
    await untilTrue(() => seen.names.has('c'))
    t.strictSame([...seen.names].sort(), ['b', 'c'])
    t.equal(seen.synced(), 2)
  })
}

void t.test('a broken watch causes no new list if the server has no older state', async (t) => {
  for (const [known, present] of [
    ['9', '9'],
    ['9', '10'],
    ['99999999999999999999', '100000000000000000000'],
    ['b', 'a'],
  ] as const) {
    const seen = await follow(t, {
      list: (number) => listOf(number === 1 ? known : present, 'a'),
      watch(answer, _version, number) {
        if (number < 3) answer.destroy()
        else answer.write(event('ADDED', 'c', '200000000000000000000'))
      },
    })
    await untilTrue(() => seen.names.has('c'))
    t.strictSame(seen.watches.slice(0, 3), [known, known, known])
    t.equal(seen.synced(), 1)
  }
})

const allSent = (version: string) =>
  `${JSON.stringify({
    type: 'BOOKMARK',
    object: {
      metadata: { resourceVersion: version, annotations: { 'k8s.io/initial-events-end': 'true' } },
    },
  })}\n`

void t.test(
  'a watch that begins with all objects: what is gone goes after the last of them',
  async (t) => {
    const begins: string[] = []
    const seen = await follow(
      t,
      {
        list: () => listOf('1', 'never'),
        watch(answer, version, number) {
          begins.push(version)
          if (number === 1) {
            // Objects come sorted by name, so their versions do not say how far the watch is.
            answer.write(event('ADDED', 'a', '9') + event('ADDED', 'b', '3'))
            answer.write(event('ADDED', 'c', '4') + event('DELETED', 'c', '11'))
            answer.write(event('ADDED', 'd', '5') + allSent('12') + event('ADDED', 'e', '13'))
            answer.end()
          } else if (number === 2) {
            answer.end('{"type":"ERROR","object":{"code":410,"message":"too old"}}\n')
          } else if (number === 3) {
            // The connection is cut before all objects came, so none counts as removed.
            answer.write(event('ADDED', 'a', '9'), () => answer.destroy())
          } else answer.write(event('ADDED', 'e', '13') + allSent('20'))
        },
      },
      {},
      true,
    )
    await untilTrue(() => seen.watches.length === 3)
    t.strictSame([...seen.names].sort(), ['a', 'b', 'd', 'e'])
    await untilTrue(() => seen.names.size === 1)
    t.strictSame([...seen.names], ['e'])
    t.strictSame(begins, ['', '13', '', ''])
    t.equal(seen.lists.length, 0)
    t.equal(seen.synced(), 2)
  },
)

for (const [what, answerWith] of [
  [
    'refuses it',
    (answer: ServerResponse) => {
      answer.statusCode = 422
      answer.end('{"message":"sendInitialEvents is forbidden"}')
    },
  ],
  ['ends it too early', (answer: ServerResponse) => answer.end(event('ADDED', 'b', '3'))],
  ['never says where the objects end', (answer: ServerResponse) => answer.flushHeaders()],
] as const) {
  void t.test(
    `a server that cannot begin a watch with all objects and ${what} is asked for a list`,
    async (t) => {
      const seen = await follow(
        t,
        {
          list: () => listOf('5', 'a'),
          watch(answer, version) {
            if (version === '') answerWith(answer)
            else answer.flushHeaders()
          },
        },
        { idleTimeoutMs: 3000 },
        true,
      )
      await untilTrue(() => seen.synced() === 1 && seen.watches.includes('5'))
      t.strictSame([...seen.names], ['a'])
      t.equal(seen.lists.length, 1)
      // The quiet watches of other kinds are reported too.
      const reports = seen.failures.filter((text) => text.includes('/api/v1/services'))
      t.equal(reports.length, what === 'refuses it' ? 0 : 1)
    },
  )
}

void t.test('where all watches are refused, lists bring the objects', async (t) => {
  const begins: string[] = []
  const seen = await follow(
    t,
    {
      list: (number) => listOf(String(number), 'a', ...(number > 1 ? ['b'] : [])),
      watch(answer, version) {
        begins.push(version)
        answer.statusCode = 403
        answer.end('{"message":"watch is forbidden"}')
      },
    },
    {},
    true,
  )
  await untilTrue(() => seen.synced() === 2)
  t.strictSame(begins.slice(0, 5), ['', '', '', '', ''], 'a watch costs the server less')
  t.strictSame(begins.slice(5, 15), ['1', '1', '1', '1', '1', '', '', '', '', ''])
  t.equal(seen.names.size, 2)
})

const expired = '{"type":"ERROR","object":{"code":410,"message":"too old"}}\n'
const ofServices = (failures: readonly string[]) =>
  failures.filter((text) => text.includes('/api/v1/services'))

for (const isStreamed of [true, false]) {
  const how = isStreamed ? 'watches with all objects' : 'lists'
  void t.test(`410 again and again causes ${how} at growing intervals`, async (t) => {
    const begins: { at: number; told: number }[] = []
    const begin = () =>
      begins.push({ at: performance.now(), told: ofServices(seen.failures).length })
    const seen = await follow(
      t,
      {
        list() {
          begin()
          return listOf('5', 'a')
        },
        watch(answer, version) {
          if (version === '') begin()
          answer.end((version === '' ? event('ADDED', 'a', '5') + allSent('5') : '') + expired)
        },
      },
      { firstRetryMs: 10, longestErrorRetryMs: 100_000 },
      isStreamed,
    )
    await untilTrue(() => begins.length >= 6)
    for (const [index, { at }] of begins.slice(1).entries()) {
      const wait = at - (begins[index]?.at ?? 0)
      t.ok(wait >= 10 * 2 ** index * 0.5 - 1, `wait ${index + 1} took ${Math.round(wait)} ms`)
    }
    t.strictSame(
      begins.map(({ told }) => told).slice(0, 6),
      [0, 0, 1, 2, 3, 4],
      'the first one is no failure',
    )
  })
}

void t.test('410 now and then is no failure, however short the watches are', async (t) => {
  const soundWatchMs = 50
  let resumedAt = Infinity
  const seen = await follow(
    t,
    {
      list: () => listOf('5', 'a'),
      watch(answer, version) {
        if (version === '') {
          resumedAt = Infinity
          answer.end(event('ADDED', 'a', '5') + allSent('5'))
          return
        }
        resumedAt = Math.min(resumedAt, performance.now())
        const isOld = performance.now() >= resumedAt + soundWatchMs
        answer.end(isOld ? expired : event('MODIFIED', 'a', '5'))
      },
    },
    { soundWatchMs },
    true,
  )
  await untilTrue(() => seen.synced() === 4)
  t.strictSame(ofServices(seen.failures), [])
})

const namelessList = JSON.stringify({ metadata: { resourceVersion: '9' }, items: [{ spec: {} }] })
const lessThanAList = JSON.stringify({ kind: 'Service', metadata: { resourceVersion: '9' } })
for (const [what, answer, told] of [
  ['whose objects have no names', namelessList, 'no object has a name, so what was known stays'],
  ['without objects', lessThanAList, 'the answer is not a list of objects'],
] as const) {
  void t.test(`R01: a list ${what} removes nothing`, async (t) => {
    const seen = await follow(t, {
      list: (number) => (number === 2 ? answer : listOf('10', 'a', 'b')),
      watch(answer, _version, number) {
        if (number > 1) return
        answer.end(`${JSON.stringify({ type: 'ERROR', object: { code: 410, message: 'gone' } })}\n`)
      },
    })
    await untilTrue(() => seen.lists.length === 3 && seen.watches.length === 2)
    t.equal(seen.synced(), 2, 'that answer is not one of all objects')
    t.strictSame(seen.removed, [])
    t.strictSame(seen.failures, [`list /api/v1/services: ${told}`])
  })
}

void t.test('an object of a list that has no name does not hide the others', async (t) => {
  const items = [{ metadata: { name: 'a' } }, { spec: {} }, { metadata: { name: 'b' } }]
  const seen = await follow(t, {
    list: () => JSON.stringify({ metadata: { resourceVersion: '9' }, items }),
    watch: (answer) => answer.flushHeaders(),
  })
  await untilTrue(() => seen.watches.length === 1)
  t.match([...seen.names].sort().join(' '), 'a b')
  t.strictSame(seen.failures, [])
})

void t.test('a list may have null in place of no objects', async (t) => {
  const seen = await follow(t, {
    list: () => JSON.stringify({ metadata: { resourceVersion: '9' }, items: null }),
    watch: (answer) => answer.flushHeaders(),
  })
  await untilTrue(() => seen.watches.length === 1)
  t.strictSame(seen.failures, [])
})

void t.test('of a long message in a watch the beginning is told', async (t) => {
  const message = `etcd ${'x'.repeat(200_000)}`
  const seen = await follow(t, {
    list: () => listOf('5', 'a'),
    watch(answer) {
      answer.end(`${JSON.stringify({ type: 'ERROR', object: { code: 500, message } })}\n`)
    },
  })
  await untilTrue(() => seen.failures.length > 0)
  t.match(seen.failures[0], /^watch \/api\/v1\/services: etcd x/)
  t.ok((seen.failures[0] ?? '').length < 2000)
})

void t.test('a mark after all objects that has no version causes a list at once', async (t) => {
  const annotations = { 'k8s.io/initial-events-end': 'true' }
  const mark = `${JSON.stringify({ type: 'BOOKMARK', object: { metadata: { annotations } } })}\n`
  const isStreamed = true
  const script: Script = {
    list: () => listOf('5', 'a'),
    watch(answer, version) {
      answer.write(version === '' ? event('ADDED', 'a', '5') + mark : event('ADDED', 'b', '6'))
    },
  }
  // Without a limit for silence only the mark can end the first watch.
  const hour = 3_600_000
  const timing = { idleTimeoutMs: hour, quietIdleTimeoutMs: hour, askAfterMs: hour }
  const seen = await follow(t, script, timing, isStreamed)
  await untilTrue(() => seen.names.has('b'))
  t.strictSame(seen.watches, ['', '5'])
  t.match(seen.failures[0], 'the mark after the last object has no resourceVersion')
})
