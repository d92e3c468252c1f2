import { existsSync, readFileSync } from 'node:fs'
import type { Command } from 'commander'
import { longestTimerMs } from '../../async.js'
import { ConfigError, KernelError, messageOf, SourceError } from '../../errors.js'
import { runCommand, type Run } from '../../kernel/command.js'

/** The flags of kubectl that choose the cluster and the user. They are passed on unchanged. */
export interface ClusterFlags {
  readonly kubeconfig?: string
  readonly context?: string
  readonly cluster?: string
  readonly user?: string
  readonly as?: string
  readonly asGroup?: readonly string[]
  readonly requestTimeout?: string
}

/** kubectl itself has no limit. One whose caller was killed would wait for a dead server for ever. */
const requestTimeout = '60s'

const collect = (value: string, before: readonly string[] = []) => [...before, value]

export function addClusterOptions(command: Command): Command {
  return command
    .optionsGroup('Which cluster, as for kubectl:')
    .option('--kubeconfig <file>', 'the kubeconfig')
    .option('--context <name>', 'the context in it')
    .option('--cluster <name>', 'the cluster in it')
    .option('--user <name>', 'the user in it')
    .option('--as <name>', 'act as this user')
    .option('--as-group <name>', 'and as a member of this group; may be repeated', collect)
    .option(
      '--request-timeout <duration>',
      `how long one request may take (default: ${requestTimeout})`,
    )
}

/**
 * Reads from the API server by running kubectl. So credentials, plug-ins, proxies and rights are
 * those of the caller's kubeconfig, and this program never sees a secret.
 */
export class Kubectl {
  readonly #flags: readonly string[]
  readonly #run: Run

  /** Tests pass a fake of `run`. */
  constructor(flags: ClusterFlags, run: Run = runCommand) {
    this.#run = run
    this.#flags = [
      ...(['kubeconfig', 'context', 'cluster', 'user', 'as'] as const).flatMap((name) =>
        flagOf(name, flags[name]),
      ),
      ...(flags.asGroup ?? []).flatMap((group) => flagOf('as-group', group)),
      ...flagOf('request-timeout', flags.requestTimeout ?? requestTimeout),
    ]
  }

  /** GET of a path of the API. Throws SourceError with the message of kubectl. */
  async get(path: string): Promise<string> {
    return this.#read(['get', '--raw', path], `read ${path.split('?', 1)[0] ?? path}`)
  }

  async object(path: string): Promise<unknown> {
    const text = await this.get(path)
    try {
      return JSON.parse(text) as unknown
    } catch (cause) {
      throw new SourceError(`read ${path}: the answer is no JSON: ${messageOf(cause)}`, { cause })
    }
  }

  async namespace(): Promise<string> {
    const path = 'jsonpath={.contexts[0].context.namespace}'
    const arguments_ = ['config', 'view', '--minify', '-o', path]
    try {
      const text = await this.#read(arguments_, 'read the kubeconfig')
      return text.trim() === '' ? 'default' : text.trim()
    } catch (error) {
      // Without a kubeconfig kubectl may know the cluster from its pod. If not, a request says so.
      if (!messageOf(error).includes('current-context must exist')) throw error
      return await namespaceOfPod()
    }
  }

  async #read(command: readonly string[], what: string): Promise<string> {
    const { code, stdout, stderr } = await this.#start([...this.#flags, ...command])
    if (code === 0) return stdout
    const reason = reasonIn(stderr)
    if (wrongFlag.test(reason)) throw new ConfigError(reason)
    throw new SourceError(`${what}: ${reason}${/forbidden/i.test(reason) ? adviceAboutRights : ''}`)
  }

  async #start(command: readonly string[]) {
    try {
      return await this.#run('kubectl', command, { timeoutMs: longestTimerMs })
    } catch (error) {
      if (!(error instanceof KernelError) || error.kind !== 'not-found') throw error
      throw new ConfigError('kubectl is not in the PATH; install it, or add its folder', {
        cause: error,
      })
    }
  }
}

/** What kubectl takes for the namespace in a pod without a kubeconfig. */
async function namespaceOfPod(): Promise<string> {
  const { serviceAccount } = await import('../../sources/cluster-access.js')
  const file = `${serviceAccount}/namespace`
  const told = process.env['POD_NAMESPACE'] ?? ''
  return told || (existsSync(file) && readFileSync(file, 'utf8').trim()) || 'default'
}

/** One argument, so that a value that begins with a dash stays a value. */
const flagOf = (name: string, value: string | undefined) =>
  value === undefined ? [] : [`--${name}=${value}`]

/** What kubectl says of the flags above and of the kubeconfig before it asks any server. */
const wrongFlag =
  /^((context|cluster|auth info) ".*" does not exist|cannot locate context|stat .*: no such file|error loading config|Invalid timeout value|requesting uid, groups)/

const adviceAboutRights = '; examples/kubectl/role.yaml has the rights that each command needs'

/** The message of kubectl, without the words with which all its errors begin. */
function reasonIn(stderr: string): string {
  const lines = stderr.trim().split('\n')
  const last = lines.findLast((line) => /^(error|Error from server)/.test(line)) ?? lines.at(-1)
  return (last ?? '').replace(/^error: /, '') || 'kubectl failed and says nothing'
}
