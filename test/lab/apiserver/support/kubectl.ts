import { spawnSync } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { CommandOutput } from '../../../../lib/kernel/command.js'
import { runCommand } from '../../../support/run-command.js'
import type { ApiServerOptions } from '../../../../lib/lab/apiserver/server.js'
import { createFaultyApi, type FaultyApi } from '../../../support/faulty-api.js'

const asked = spawnSync('kubectl', ['version', '--client', '-o', 'json'], { encoding: 'utf8' })

/** The reason to skip tests with the real kubectl, or false if it is there. */
export const noKubectl: string | false =
  asked.error === undefined
    ? false
    : 'no kubectl on this machine (Debian: apt-get install kubernetes-client)'

/** The minor version: 20 for kubectl 1.20 of Debian 12. Some tests need a later one. */
export const kubectlMinor = Number(/"minor": "(\d+)/.exec(asked.stdout)?.[1] ?? 0)

export interface TestServer {
  readonly api: FaultyApi
  readonly url: string
  readonly kubeconfig: string
  /** Runs kubectl with the server. It resolves with any exit code. */
  kubectl(args: string, stdin?: string): Promise<CommandOutput>
  /** Runs kubectl and returns its output. A failure is an error of the test. */
  ok(args: string, stdin?: string): Promise<string>
  stop(): Promise<void>
}

/** A server on a free loopback port, with a separate directory for kubectl's caches. */
export async function startServer(options: Partial<ApiServerOptions> = {}): Promise<TestServer> {
  const directory = await mkdtemp(join(tmpdir(), 'kpts-api-'))
  const kubeconfig = join(directory, 'kubeconfig')
  const api = createFaultyApi(options)
  const controller = new AbortController()
  const running = api.run(controller.signal)
  await api.writeKubeconfig(kubeconfig)
  const kubectl = (args: string, stdin = '') =>
    runCommand(
      'kubectl',
      [`--kubeconfig=${kubeconfig}`, `--cache-dir=${directory}/cache`, ...args.split(' ')],
      { stdin },
    )
  return {
    api,
    url: await api.listening(),
    kubeconfig,
    kubectl,
    async ok(args, stdin) {
      const result = await kubectl(args, stdin)
      if (result.code !== 0) throw new Error(`kubectl ${args}: ${result.stderr}${result.stdout}`)
      return result.stdout
    },
    async stop() {
      controller.abort()
      await running
      await rm(directory, { recursive: true, force: true })
    },
  }
}
