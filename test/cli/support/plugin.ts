import { mkdtempSync, rmSync, symlinkSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { join } from 'node:path'
import { tmpdir } from 'node:os'
import type { Test } from 'tap'
import type { CommandOutput } from '../../../lib/kernel/command.js'
import { runCommand } from '../../support/run-command.js'
import { commandThread } from '../../support/command-thread.js'
import type { ApiServer } from '../../../lib/lab/apiserver/server.js'

/** The programs by the names under which npm installs them. */
const programs = { 'kubectl-svcproxy': 'main.js', 'kubectl_complete-svcproxy': 'complete-main.js' }

/** Runs commands of the plug-in for tests that want their answers only. */
export const pluginThread = commandThread('kubectl-svcproxy')

/**
 * Installs the plug-in as npm does: the real kubectl finds a link in the PATH by its name. The
 * function that it returns starts the plug-in as kubectl does, which is a third program less.
 */
export function installPlugin(t: Test, kubeconfig: string) {
  const folder = mkdtempSync(join(tmpdir(), 'plugin-'))
  t.teardown(() => rmSync(folder, { recursive: true }))
  for (const [name, file] of Object.entries(programs)) {
    const main = fileURLToPath(new URL(`../../../lib/cli/kubectl/${file}`, import.meta.url))
    symlinkSync(main, join(folder, name))
  }
  process.env.PATH = `${folder}:${process.env.PATH ?? ''}`
  process.env.KUBECONFIG = kubeconfig
  return (...args: readonly string[]): Promise<CommandOutput> =>
    runCommand(join(folder, 'kubectl-svcproxy'), args)
}

/** Adds the pod of a proxy with this address. */
export function putProxy(api: ApiServer, node: string, podIP: string, name = `proxy-${node}`) {
  api.put({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      name,
      namespace: 'kube-system',
      labels: { 'app.kubernetes.io/name': 'kube-proxy-ts' },
    },
    spec: { nodeName: node, hostNetwork: true, containers: [{ name: 'kube-proxy', image: 'x' }] },
    status: { phase: 'Running', podIP, podIPs: [{ ip: podIP }] },
  })
}
