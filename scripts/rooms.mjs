// The rooms of lib/: what lives in each, and what each may import. The lint rules are made from
// this table, and docs/architecture.md shows it (`npm run docs` writes it there).
import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join, normalize, relative, sep } from 'node:path'

/** Small files that any room may import. */
const everywhere = ['errors.ts', 'async.ts', 'engine.ts', 'platform.ts', 'yaml-levels.ts']

/** `imports` names rooms, or single files of a room where that is all that is needed. */
export const rooms = {
  state: {
    what: 'objects → `DesiredState`: parsing, endpoints, policies, hints, the tracker. Pure: no I/O, no clock',
    imports: [],
    isPure: true,
  },
  kernel: {
    what: 'the edge: iptables, nftables, netlink, sockets, files. Text or bytes; never a Service',
    imports: ['state/ip.ts'],
  },
  sources: {
    what: 'list-watch of the API, manifest folder, interface addresses, health checks of endpoints → the tracker',
    imports: [
      'state',
      'kernel/follow-path.ts',
      'kernel/links.ts',
      ...['libc', 'sockets', 'socket-address', 'errno', 'reset'].map(
        (file) => `kernel/sockets/${file}.ts`,
      ),
    ],
  },
  modes: {
    what: 'one folder a mode, `registry.ts`, `choose.ts` (probe and fall back)',
    imports: ['state', 'kernel', 'config/config.ts', 'config/feature-gates.ts'],
  },
  sync: {
    what: 'when to sync, in which order, what to clean in conntrack',
    imports: ['state', 'modes/mode.ts', 'kernel/conntrack.ts'],
  },
  config: {
    what: 'one table of keys for file, flags, help and documents',
    imports: ['state', 'kernel/follow-path.ts'],
  },
  observe: {
    what: 'log, metrics, health, events, and the stream of connections. Other rooms tell it what happens',
    imports: [
      'state',
      'config',
      'kernel',
      'modes/mode.ts',
      'sync/syncer.ts',
      'sources/answer-body.ts',
      'sources/api-client.ts',
      'sources/backoff.ts',
      'sources/health/health-checks.ts',
      'sources/source.ts',
    ],
  },
  inspect: {
    what: '`explain` (packets walked through plans, pure), `diff`, `trace` and `top`',
    imports: ['state', 'modes', 'kernel', 'config/config.ts'],
  },
  page: {
    what: 'the page in the browser: its server, its words, and the dashboard over a live daemon',
    imports: ['state', 'modes', 'kernel', 'inspect', 'config', 'observe', 'sources', 'sync'],
  },
  daemon: {
    what: 'the composition root of a node, and what this node is: name, families, kernel settings',
    imports: [...['state', 'kernel', 'sources', 'modes', 'sync', 'config', 'observe'], 'page'],
  },
  cli: {
    what: 'argv in, exit code out; `main.ts` is what a node runs',
    imports: [...['state', 'kernel', 'sources', 'modes', 'config', 'observe', 'inspect', 'daemon']],
  },
  lab: {
    what: 'an API server in memory, a small cluster of network namespaces, the playground. Never on a node',
    imports: [
      ...[
        'state',
        'kernel',
        'sources',
        'modes',
        'sync/stale-flows.ts',
        'config',
        'inspect',
        'page',
        'cli',
      ],
    ],
  },
}

/** Inside a room: modes do not import each other, and files that plan are pure. */
const inside = [
  {
    from: /^modes\/(\w+)\//,
    to: /^modes\/(\w+)\//,
    isWrong: ([, from], [, to]) => from !== to,
    why: 'modes never import each other',
  },
  {
    from: /^modes\/\w+\/(plan|render)\.ts$/,
    to: /^kernel\/(?!nftables\/|iptables)/,
    isWrong: () => true,
    why: 'plan.ts and render.ts are pure',
  },
]

/** Why `from` must not import `to` (paths below lib/), or undefined. */
export function wrongArrow(from, to) {
  for (const rule of inside) {
    const [a, b] = [rule.from.exec(from), rule.to.exec(to)]
    if (a && b && rule.isWrong(a, b)) return rule.why
  }
  const [room, target] = [from, to].map((file) => file.split('/')[0])
  if (room === target || everywhere.includes(to) || !(room in rooms)) return undefined
  const { imports } = rooms[room]
  if (imports.includes(target) || imports.includes(to)) return undefined
  return `${room}/ may import ${[...imports, ...everywhere].join(', ')}; see scripts/rooms.mjs`
}

const importPattern = /(?:\bfrom|\bimport)\s*\(?\s*'(\.{1,2}\/[^']+)\.js'/g

/** What each file below lib/ imports, types included. */
export function importsOf(lib) {
  const files = readdirSync(lib, { recursive: true, encoding: 'utf8' })
    .map((file) => file.split(sep).join('/'))
    .filter((file) => file.endsWith('.ts'))
  return new Map(
    files.map((file) => {
      const targets = [...readFileSync(join(lib, file), 'utf8').matchAll(importPattern)]
      return [file, targets.map(([, target]) => normalize(join(dirname(file), `${target}.ts`)))]
    }),
  )
}

/** The shortest circle of imports through `start`, or undefined. */
export function circleAt(imports, start) {
  const cameFrom = new Map()
  const queue = [start]
  for (const file of queue) {
    for (const next of imports.get(file) ?? []) {
      if (next === start) {
        const circle = [start]
        for (let at = file; at !== start; at = cameFrom.get(at)) circle.unshift(at)
        return [start, ...circle]
      }
      if (cameFrom.has(next)) continue
      cameFrom.set(next, file)
      queue.push(next)
    }
  }
  return undefined
}

/**
 * A plugin for oxlint: `house/rooms` finds forbidden imports, `house/circles` finds circles, and
 * `house/atomics` what may write half of a value.
 */
export function housePlugin(lib) {
  let imports
  const fileOf = (context) => relative(lib, context.filename).split(sep).join('/')
  const rooms = (context) => {
    const from = fileOf(context)
    const check = (node) => {
      const target = node.source?.value
      if (typeof target !== 'string') return
      if (!target.startsWith('.')) {
        if (isPure(from)) {
          context.report({ node, message: `${from} is pure: no I/O, no clock, no packages` })
        }
        return
      }
      const to = normalize(join(dirname(from), target.replace(/\.js$/, '.ts')))
      const why = wrongArrow(from, to)
      if (why !== undefined) context.report({ node, message: `${from} imports ${to}: ${why}` })
    }
    return {
      ImportDeclaration: check,
      ImportExpression: check,
      ExportNamedDeclaration: check,
      ExportAllDeclaration: check,
    }
  }
  const circles = (context) => ({
    Program: (node) => {
      imports ??= importsOf(lib)
      const circle = circleAt(imports, fileOf(context))
      if (circle) context.report({ node, message: `imports in a circle: ${circle.join(' → ')}` })
    },
  })
  return {
    meta: { name: 'house' },
    rules: { rooms: { create: rooms }, circles: { create: circles }, atomics: { create: atomics } },
  }
}

/** Programs of the kernel read this memory while it is written: a write byte by byte shows them halves. */
function atomics(context) {
  const message = 'only Atomics may write to memory that is shared with the kernel'
  const selectors = [
    'MemberExpression[property.name=/^(write|set|fill|copy|sort|reverse|with)/]',
    'AssignmentExpression > MemberExpression[computed=true].left',
    'UpdateExpression > MemberExpression[computed=true]',
    'NewExpression[callee.name=/^(DataView|(Big)?(Ui|I)nt.*Array)$/]',
    "Identifier[name='Buffer']",
  ]
  const refuse = (node) => context.report({ node, message })
  return Object.fromEntries(selectors.map((selector) => [selector, refuse]))
}

export default housePlugin(join(import.meta.dirname, '../lib'))

const isPure = (file) =>
  rooms[file.split('/')[0]]?.isPure === true || /^modes\/\w+\/(plan|render)\.ts$/.test(file)

/** docs/architecture.md with the table as it is now. */
export function withRooms(text) {
  const lines = Object.entries(rooms).map(([name, { what, imports }]) => {
    const names = imports.map((one) => (one.includes('/') ? `\`${one}\`` : `\`${one}/\``))
    return `| \`${name}/\` | ${what} | ${names.join(', ') || 'nothing'} |`
  })
  const table = ['| room | what lives there | may import |', '|---|---|---|', ...lines].join('\n')
  const marks = /(<!-- rooms[^>]*-->\n)[^]*?(<!-- \/rooms -->)/
  if (!marks.test(text)) throw new Error('docs/architecture.md has no place for the table of rooms')
  return text.replace(marks, (_, start, end) => `${start}${table}\n${end}`)
}
