import { readFile } from 'node:fs/promises'

/** The state of a TCP socket that waits for connections. */
const listenState = '0A'

/** The ports of this network namespace that somebody listens on, as `tcp 80` and `udp 53`. */
export async function listeningPorts(root = '/proc'): Promise<ReadonlySet<string>> {
  const ports = new Set<string>()
  for (const file of ['tcp', 'tcp6', 'udp', 'udp6']) {
    const protocol = file.slice(0, 3)
    const text = await readFile(`${root}/thread-self/net/${file}`, 'utf8').catch(() => '')
    for (const line of text.split('\n').slice(1)) {
      const [, local = '', , state = ''] = line.trim().split(/\s+/)
      const port = Number.parseInt(local.split(':')[1] ?? '', 16)
      if (port > 0 && (protocol === 'udp' || state === listenState))
        ports.add(`${protocol} ${port}`)
    }
  }
  return ports
}
