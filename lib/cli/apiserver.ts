import { InvalidArgumentError, type Command } from 'commander'
import { createApiServer } from '../apiserver/server.js'

interface ApiServerFlags {
  readonly listen: { readonly host: string; readonly port: number }
  readonly writeKubeconfig?: string
}

/** Adds `kube-proxy apiserver`: the Kubernetes API in memory, to try things without a cluster. */
export function addApiserverCommand(program: Command): void {
  program
    .command('apiserver')
    .description('serve the Kubernetes API from memory, so that kubectl works without a cluster')
    .option('--listen <host:port>', 'where to serve', parseListen, parseListen('127.0.0.1:8001'))
    .option('--write-kubeconfig <file>', 'write a kubeconfig once the server answers')
    .action(serveUntilSignal)
}

async function serveUntilSignal(flags: ApiServerFlags): Promise<void> {
  const controller = new AbortController()
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    process.once(signal, () => controller.abort())
  }
  const api = createApiServer(flags.listen)
  const running = api.run(controller.signal)
  // A server that cannot listen never announces itself; its own promise says why.
  await Promise.race([running, announce()])
  await running

  async function announce(): Promise<void> {
    const url = await api.listening()
    process.stdout.write(`serving the Kubernetes API at ${url}\n`)
    if (flags.writeKubeconfig === undefined) return
    await api.writeKubeconfig(flags.writeKubeconfig)
    process.stdout.write(`try: kubectl --kubeconfig ${flags.writeKubeconfig} get svc -A\n`)
  }
}

function parseListen(text: string): { readonly host: string; readonly port: number } {
  const found = /^(?:\[([^\]]+)\]|([^:]*)):(\d{1,5})$/.exec(text)
  const port = Number(found?.[3])
  if (found === null || port > 65_535) {
    throw new InvalidArgumentError('expected HOST:PORT, such as 127.0.0.1:8001 or [::1]:8001')
  }
  const host = found[1] ?? found[2] ?? ''
  return { host: host === '' ? '127.0.0.1' : host, port }
}
