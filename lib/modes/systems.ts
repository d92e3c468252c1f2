import type { ModeName, ProxyMode } from '../config/config.js'
import { systemHere, type System } from '../platform.js'
import type { Finding } from './mode.js'

/**
 * The system that the mode is for, as a finding; undefined on that system. Elsewhere a mode can be
 * planned and rendered, but its code for the kernel is not loaded.
 */
export function missingSystem(mode: string, here: System = systemHere()): Finding | undefined {
  const wanted = mode === 'winuserspace' ? 'win32' : 'linux'
  if (wanted === here) return undefined
  const what = `the operating system ${wanted === 'linux' ? 'Linux' : 'Windows'}`
  return { what, ok: false, required: true, seen: `this is ${process.platform}`, fix: advice(here) }
}

/**
 * The mode that a configuration asks for. An empty name means iptables, as upstream; kubeadm writes
 * an empty name. On Windows, where only winuserspace runs, an empty name, `auto` and `userspace`
 * mean winuserspace.
 */
export function modeMeant(mode: ModeName | '', here?: System): ModeName
export function modeMeant(mode: ProxyMode, here?: System): ModeName | 'auto'
export function modeMeant(mode: ProxyMode, here: System = systemHere()): ModeName | 'auto' {
  const isUsual = mode === 'userspace' || mode === 'auto' || mode === ''
  if (here === 'win32' && isUsual) return 'winuserspace'
  return mode === '' ? 'iptables' : mode
}

function advice(here: System): string {
  if (here === 'win32') return '--proxy-mode=winuserspace is the mode for Windows'
  if (here === 'linux') {
    return '--proxy-mode=userspace --userspace-portals=addresses does the same here'
  }
  return 'the proxy runs on Linux and Windows; render and explain work everywhere'
}
