/** What the load server offers, and where. Proxies listen on the same ports. */
export const ports = {
  /** Several, so that source ports do not run out: a proxy connects from one address only. */
  short: [7001, 7002, 7003, 7004],
  echo: 7100,
  echo2: 7101,
  sink: 7200,
  source: 7201,
  udp: 7300,
  udp2: 7301,
} as const

export const requestBytes = 64
export const responseBytes = 128
