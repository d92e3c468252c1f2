/** The part of a bridge that lives in a worker thread inside its namespace. */
import { parentPort, workerData } from 'node:worker_threads'
import { forward, type BridgeEnd, type BridgeRequest } from './bridge.js'
import { joinNetworkNamespace } from './namespaces.js'

const { namespace, from, to } = workerData as BridgeRequest
joinNetworkNamespace(namespace)
await forward(optionsOf(from), optionsOf(to))
parentPort?.postMessage('listening')

function optionsOf(end: BridgeEnd) {
  return 'path' in end ? end : { host: '127.0.0.1', ...end }
}
