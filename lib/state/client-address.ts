import { wordAnnotation } from './annotations.js'

/** A header tells the endpoint who the client is. */
export const proxyProtocolAnnotation = wordAnnotation('proxy-protocol', ['v1', 'v2'])

/** Whether endpoints see the client's own address, where the kernel modes would leave it. */
export const sourceAddressAnnotation = wordAnnotation('source-address', ['auto', 'keep', 'hide'])
