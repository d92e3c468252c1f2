import { wordAnnotation } from './annotations.js'

/** A header tells the endpoint who the client is. */
export const proxyProtocolAnnotation = wordAnnotation('proxy-protocol', ['v1', 'v2'])
