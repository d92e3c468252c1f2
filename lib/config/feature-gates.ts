export interface FeatureGates {
  readonly [gate: string]: boolean
}

interface Gate {
  /** Stages as Kubernetes names them; empty: generally available, or a gate of this program. */
  readonly stage: '' | 'ALPHA' | 'BETA' | 'DEPRECATED'
  readonly isOn: boolean
  /** No other value has an effect here. */
  readonly isFixed?: true
}

/** The feature gates of kube-proxy 1.37 (section 19), and one of this program. */
export const featureGates: Readonly<Record<string, Gate>> = {
  AllAlpha: { stage: 'ALPHA', isOn: false },
  AllBeta: { stage: 'BETA', isOn: false },
  /**
   * A gate of this program, for playgrounds. It allows endpoints on 127.0.0.0/8 and ::1, where this
   * node's own services may listen.
   */
  AllowLoopbackEndpoints: { stage: '', isOn: false },
  AllowServiceExternalIPs: { stage: 'DEPRECATED', isOn: true },
  ComponentFlagz: { stage: 'BETA', isOn: true },
  ComponentStatusz: { stage: 'BETA', isOn: true },
  ContextualLogging: { stage: 'BETA', isOn: true, isFixed: true },
  KubeProxyIPVS: { stage: 'DEPRECATED', isOn: true },
  /** Off in 1.37, on in 1.38. Here it has always been on. */
  KubeProxyNFTablesLocalhostNodePorts: { stage: 'BETA', isOn: true },
  LoggingAlphaOptions: { stage: 'ALPHA', isOn: false, isFixed: true },
  LoggingBetaOptions: { stage: 'BETA', isOn: true, isFixed: true },
  MultiCIDRServiceAllocator: { stage: '', isOn: true, isFixed: true },
  /** Only scrapes in protobuf have them, which this program does not answer. */
  NativeHistograms: { stage: 'BETA', isOn: false, isFixed: true },
  NFTablesNetlink: { stage: 'BETA', isOn: true, isFixed: true },
  PreferSameTrafficDistribution: { stage: '', isOn: true, isFixed: true },
  WinDSR: { stage: '', isOn: true, isFixed: true },
  WinOverlay: { stage: '', isOn: true, isFixed: true },
}

/** As in Kubernetes, `AllAlpha` and `AllBeta` set the gates of their stage that nobody names. */
export function isEnabled(gates: FeatureGates, name: string): boolean {
  const gate = featureGates[name]
  if (!gate || gate.isFixed) return gate?.isOn ?? false
  const ofAll = {
    ALPHA: gates['AllAlpha'],
    BETA: gates['AllBeta'],
    DEPRECATED: undefined,
    '': undefined,
  }
  return gates[name] ?? ofAll[gate.stage] ?? gate.isOn
}

/** A warning for each gate without effect. Many old gates are still in use in configurations. */
export function gateWarnings(gates: FeatureGates): string[] {
  return Object.entries(gates).flatMap(([name, isOn]) => {
    const gate = Object.hasOwn(featureGates, name) ? featureGates[name] : undefined
    if (!gate) return [`feature gate ${name} is unknown and has no effect`]
    if (!gate.isFixed || gate.isOn === isOn) return []
    return [
      `feature gate ${name} is always ${gate.isOn ? 'on' : 'off'} here; ${isOn} has no effect`,
    ]
  })
}
