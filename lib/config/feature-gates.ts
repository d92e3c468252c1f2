import type { FeatureGates } from './config.js'

/** The feature gates of a service proxy (section 19), with their defaults. */
export const featureGates: Readonly<Record<string, boolean>> = {
  AllAlpha: false,
  AllBeta: false,
  /**
   * A gate of this program, for playgrounds. It allows endpoints on 127.0.0.0/8 and ::1, where this
   * node's own services may listen.
   */
  AllowLoopbackEndpoints: false,
  AllowServiceExternalIPs: true,
  ComponentFlagz: false,
  ComponentStatusz: false,
  ContextualLogging: true,
  KubeProxyNFTablesLocalhostNodePorts: false,
  LoggingAlphaOptions: false,
  LoggingBetaOptions: true,
  MultiCIDRServiceAllocator: true,
  NativeHistograms: false,
  PreferSameTrafficDistribution: true,
  WinDSR: true,
  WinOverlay: true,
}

export function isEnabled(gates: FeatureGates, name: string): boolean {
  return gates[name] ?? featureGates[name] ?? false
}

/** A warning for each unknown gate. Many old gates are still in use in configurations. */
export function unknownGates(gates: FeatureGates): string[] {
  return Object.keys(gates)
    .filter((name) => !Object.hasOwn(featureGates, name))
    .map((name) => `feature gate ${name} is unknown and has no effect`)
}
