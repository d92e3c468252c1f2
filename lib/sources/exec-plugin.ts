import { execFile, type ExecFileException } from 'node:child_process'
import { createSecureContext } from 'node:tls'
import { messageOf, SourceError } from '../errors.js'
import { asObject, asString, parseJson, type Json } from '../state/json.js'
import type { Credentials } from './api-client.js'

/** The program that gives the credentials of a user, as a kubeconfig names it. */
export interface ExecSpec {
  readonly apiVersion: string
  /** A path, or a name in PATH. */
  readonly command: string
  readonly args: readonly string[]
  readonly env: Readonly<Record<string, string>>
  /** What the plugin is told of the cluster; undefined: it does not ask. */
  readonly cluster: Json | undefined
}

/** A plugin that is not ready by then is ended, so that the next request starts a new one. */
const longestRunMs = 60_000

/** Characters of a complaint that the error repeats. The reason is mostly at its end. */
const longestComplaint = 4096

interface Given {
  readonly credentials: Credentials
  /** Milliseconds since 1970; Infinity where the plugin names no end. */
  readonly until: number
}

/** Asks the program for credentials, and keeps them until their end or a refusal, as client-go. */
export class ExecPlugin {
  readonly #spec: ExecSpec
  readonly #longestMs: number
  #given: Given | undefined
  #asking: Promise<Credentials> | undefined

  constructor(spec: ExecSpec, longestMs = longestRunMs) {
    this.#spec = spec
    this.#longestMs = longestMs
  }

  async credentials(): Promise<Credentials> {
    if (this.#given !== undefined && this.#given.until > Date.now()) return this.#given.credentials
    // All requests wait for the same program, so one that hangs is not started again and again.
    return (this.#asking ??= this.#ask().finally(() => (this.#asking = undefined)))
  }

  forget(): void {
    this.#given = undefined
  }

  async #ask(): Promise<Credentials> {
    try {
      this.#given = parse(await run(this.#spec, this.#longestMs))
      return this.#given.credentials
    } catch (cause) {
      const text = `run the exec plugin ${this.#spec.command}: ${messageOf(cause)}`
      throw new SourceError(text, { cause })
    }
  }
}

/** Resolves to what the program printed. It cannot ask anybody: there may be no terminal. */
function run(spec: ExecSpec, timeout: number): Promise<string> {
  const { apiVersion, command, args, env, cluster } = spec
  const about = { apiVersion, kind: 'ExecCredential', spec: { interactive: false, cluster } }
  const info = { KUBERNETES_EXEC_INFO: JSON.stringify(about) }
  return new Promise((resolve, reject) => {
    // One that hangs would outlive this process, and each restart would add another. A listener of
    // the daemon ends the process without a return, so this one comes before.
    const end = () => program.kill('SIGKILL')
    process.prependListener('exit', end)
    const program = execFile(
      command,
      args,
      { env: { ...process.env, ...info, ...env }, timeout, killSignal: 'SIGKILL' },
      (error, printed, complaint) => {
        process.off('exit', end)
        if (error === null) resolve(printed)
        else if (error.killed) reject(new Error(`it did not end within ${timeout / 1000} s`))
        else reject(new Error(whyFailed(error, complaint), { cause: error }))
      },
    )
    program.stdin?.end()
  })
}

/** The message of Node has all arguments, which may be secret. */
function whyFailed({ code, signal, message }: ExecFileException, complaint: string): string {
  if (typeof code === 'string') return message
  const end = signal ? `signal ${signal}` : `exit code ${code}`
  return complaint.trim().slice(-longestComplaint) || `${end}, and it gave no reason`
}

/** What was printed may hold secrets, so no error repeats it. */
function parse(printed: string): Given {
  const status = asObject(asObject(parseJson(printed))?.['status'])
  if (status === undefined) {
    throw new Error('what it printed is no ExecCredential with a status; run it by hand to see why')
  }
  const [token, cert, key] = ['token', 'clientCertificateData', 'clientKeyData'].map((field) =>
    asString(status[field]),
  )
  const hasPair = Boolean(cert) && Boolean(key)
  if (!token && !hasPair) {
    throw new Error(
      'its status has neither a token nor a certificate with a key; run it by hand to see why',
    )
  }
  // No request could be sent with it, and so no refusal would make the plugin run again.
  if (token) checkToken(token, 'its token')
  if (hasPair) createSecureContext({ cert, key })
  const end = asString(status['expirationTimestamp'])
  return {
    credentials: {
      headers: token ? { Authorization: `Bearer ${token}` } : {},
      ...(hasPair ? { cert, key } : {}),
    },
    // An end that is no time is always over.
    until: end === undefined ? Infinity : Date.parse(end),
  }
}

/** Node refuses such a header and names no file. */
export function checkToken(token: string, what: string): void {
  if (!/[^ -~]/.test(token)) return
  throw new SourceError(`${what} has a line break, or another character that no token has`)
}
