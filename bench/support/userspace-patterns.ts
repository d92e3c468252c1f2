import { ports } from './services.js'

/** The last two are one process with 1,000 other Services, which rest or change. */
export type Contestant = 'direct' | 'haproxy' | 'splice' | 'net' | 'resting' | 'changing'

export interface Pattern {
  readonly title: string
  readonly load: string
  readonly port: number
  readonly n: number
  /** What is compared, and whether more is better. */
  readonly metric: string
  readonly unit: string
  readonly contestants: readonly Contestant[]
  /** What is handed on: a contestant as a ratio of another, and what was promised of it. */
  readonly ratios: readonly (readonly [Contestant, Contestant, string?])[]
  /** What the issue asks for. */
  readonly target: string
}

const everybody: readonly Contestant[] = ['direct', 'haproxy', 'splice', 'net']
/** What userspace mode is measured by, and against whom. */
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
    title: 'new connections, 3,000 a second: p99',
    ratios: [
      ['splice', 'haproxy', '<= 1'],
      ['changing', 'resting', '<= 1.2'],
    ],
    target:
      'splice <= 1 of haproxy; changing (1,000 other Services, every second) <= 1.2 of resting',
    load: 'rate',
    port: ports.short[0],
    n: 3000,
    metric: 'p99',
    unit: 'ms',
    contestants: [...everybody, 'resting', 'changing'],
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
  {
    title: 'one bulk stream up',
    ratios: [['splice', 'haproxy', '>= 1.8']],
    target: 'splice >= 1.8 of haproxy',
    load: 'bulk',
    port: ports.sink,
    n: 1,
    metric: 'gigabitsPerSecond',
    unit: 'Gbit/s',
    contestants: everybody,
  },
  {
    title: 'one bulk stream down',
    ratios: [['splice', 'haproxy', '>= 1.8']],
    target: 'splice >= 1.8 of haproxy',
    load: 'bulk',
    port: ports.source,
    n: 1,
    metric: 'gigabitsPerSecond',
    unit: 'Gbit/s',
    contestants: everybody,
  },
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
