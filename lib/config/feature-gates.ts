import type { FeatureGates } from './config.js'

/** Gates that mean something to a service proxy (section 19), and what they are unless set. */
export const featureGates: Readonly<Record<string, boolean>> = {
  AllAlpha: false,
  AllBeta: false,
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

/** One sentence for each gate nobody here knows: textbooks name many that are long gone. */
export function unknownGates(gates: FeatureGates): string[] {
  return Object.keys(gates)
    .filter((name) => !Object.hasOwn(featureGates, name))
    .map((name) => `feature gate ${name} is not known here and has no effect`)
}
