import { ports } from './services.js'

/** The last two are one process with 1,000 other Services, which rest or change. */
export type Contestant = 'direct' | 'haproxy' | 'splice' | 'net' | 'resting' | 'changing'

export interface Pattern {
  readonly title: string
  readonly load: string
  readonly port: number
  readonly n: number
  /** The number of the report that is compared. */
  readonly metric: string
  readonly unit: string
  readonly contestants: readonly Contestant[]
  /** How many times as many rounds this noisy pattern needs; 1 if missing. */
  readonly times?: number
  /** The congestion control, if it is not the usual one. */
  readonly congestionControl?: string
  /** The results: the ratio of a contestant to another one, and its target. */
  readonly ratios: readonly (readonly [Contestant, Contestant, string?])[]
  /** The targets, in words. */
  readonly target: string
}

const everybody: readonly Contestant[] = ['direct', 'haproxy', 'splice', 'net']
const rate = { load: 'rate', port: ports.short[0], n: 3000, metric: 'p99', unit: 'ms' } as const
const bulk = { load: 'bulk', n: 1, metric: 'gigabitsPerSecond', unit: 'Gbit/s' } as const
const bulkPatterns: readonly Pattern[] = [
  { title: 'one bulk stream up', port: ports.sink },
  { title: 'one bulk stream down', port: ports.source },
].flatMap(({ title, port }) => [
  {
    ...{ ...bulk, title, port, contestants: everybody },
    ratios: [['splice', 'haproxy', '>= 1.8']],
    target: 'splice >= 1.8 of haproxy',
  },
  {
    ...{ ...bulk, title: `${title}, paced by BBR`, port, contestants: everybody },
    congestionControl: 'bbr',
    ratios: [['splice', 'haproxy']],
    target: 'none: timers of the ends are the limit, also without a proxy',
  },
])

/** The loads that userspace mode is measured with, and its contestants. */
export const patterns: readonly Pattern[] = [
  {
    title: 'new connections, 64 at a time',
    ratios: [
      ['splice', 'haproxy', '>= 1'],
      ['net', 'haproxy', '>= 0.5'],
    ],
    target: 'splice >= 1.0 of haproxy, net >= 0.5',
    load: 'connections',
    port: ports.short[0],
    n: 64,
    metric: 'perSecond',
    unit: '/s',
    contestants: everybody,
  },
  {
    ...{ ...rate, title: 'new connections, 3,000 a second: p99', contestants: everybody },
    ratios: [['splice', 'haproxy', '<= 1']],
    target: 'splice <= 1 of haproxy',
    times: 2,
  },
  {
    ...{ ...rate, title: '3,000 a second while 1,000 other Services rest or change: p99' },
    contestants: ['resting', 'changing'],
    ratios: [['changing', 'resting', '<= 1.2']],
    target: 'changing <= 1.2 of resting',
    times: 5,
  },
  {
    title: 'ping-pong, 64 clients',
    ratios: [['splice', 'haproxy', '>= 0.9']],
    target: 'splice >= 0.9 of haproxy',
    load: 'pingpong',
    port: ports.echo,
    n: 64,
    metric: 'perSecond',
    unit: '/s',
    contestants: everybody,
  },
  {
    title: 'ping-pong, 1 client',
    ratios: [['splice', 'haproxy']],
    target: 'none',
    load: 'pingpong',
    port: ports.echo,
    n: 1,
    metric: 'perSecond',
    unit: '/s',
    contestants: everybody,
  },
  ...bulkPatterns,
  {
    title: 'UDP echo, 64 clients',
    ratios: [['splice', 'direct', '>= 0.5']],
    target: 'splice >= 0.5 of direct',
    load: 'udp',
    port: ports.udp,
    n: 64,
    metric: 'perSecond',
    unit: '/s',
    contestants: ['direct', 'splice', 'net'],
  },
]
