/** The part of a gauge that lives in a worker thread inside the node's namespace. */
import { parentPort, workerData } from 'node:worker_threads'
import { joinNetworkNamespace } from '../world/namespaces.js'
import { failingEndpoints, textAt } from '../../cli/seen-node.js'
import { listTrackedFlows } from '../../kernel/conntrack.js'
import { runCommand } from '../../kernel/command.js'
import type { GaugeAnswer, GaugePlace, GaugeQuestion, GaugeWorkerMessage } from './node-gauge.js'

/** The backend that holds the rules is the one that shows KUBE- chains. */
const savers = ['iptables-save', 'iptables-nft-save', 'iptables-legacy-save']
let saver: string | undefined

async function answer(question: GaugeQuestion, place: GaugePlace): Promise<GaugeAnswer> {
  const { urls, namespace } = place
  if (question.ask === 'ready') {
    await text(`${urls.health}/readyz`)
    return { isReady: true }
  }
  if (question.ask === 'tracked') return tracked()
  if (question.ask === 'failing') {
    return { failing: failingEndpoints(await text(`${urls.metrics}/failing-endpoints`)) }
  }
  switch (question.mode) {
    case 'iptables':
      return { iptables: await savedRules() }
    case 'userspace': {
      const metrics = await text(`${urls.metrics}/metrics`)
      // Without a namespace these would be the rules of this machine itself.
      return namespace === undefined ? { metrics } : { iptables: await savedRules(), metrics }
    }
    case 'ipvs':
      return { ipvs: (await runCommand('ipvsadm', ['-Ln', '--stats'])).stdout }
    case 'ebpf':
      return { ...(await tracked()), metrics: await text(`${urls.metrics}/metrics`) }
    default:
      return tracked()
  }
}

const tracked = async () => ({ tracked: await listTrackedFlows('IPv4') })

async function savedRules(): Promise<string> {
  for (const program of saver === undefined ? savers : [saver]) {
    const { stdout } = await runCommand(program, ['-c']).catch(() => ({ stdout: '' }))
    if (!stdout.includes('KUBE-')) continue
    saver = program
    return stdout
  }
  saver = undefined
  return ''
}

/** A daemon that is restarted in this moment may never answer. */
const text = (url: string) => textAt(url, AbortSignal.timeout(10_000))

if (parentPort) {
  const port = parentPort
  const place = workerData as GaugePlace
  if (place.namespace !== undefined) joinNetworkNamespace(place.namespace)
  port.on('message', (question: GaugeQuestion & { readonly number: number }) => {
    const { number } = question
    answer(question, place).then(
      (found) => port.postMessage({ number, ...found } satisfies GaugeWorkerMessage),
      // A daemon that does not answer now is asked again soon.
      () => port.postMessage({ number } satisfies GaugeWorkerMessage),
    )
  })
  // No question has this number: it says that all is loaded.
  port.postMessage({ number: 0 } satisfies GaugeWorkerMessage)
}
