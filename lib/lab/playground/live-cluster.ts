import type { ApiObjects } from '../apiserver/objects.js'
import type { ModeName } from '../../config/config.js'
import type { PodRoom, TestBed } from './test-bed.js'

/** The modes that a playground shows, in historical order. */
export const allModes: readonly ModeName[] = ['userspace', 'iptables', 'ipvs', 'nftables', 'ebpf']

export interface ModeOptions {
  /** Of ipvs mode. */
  readonly scheduler?: string
  /** Gets every line of the daemon's log, which is then JSON with details. */
  readonly onLine?: (line: string) => void
}

/** What the page shows and controls: a cluster of real packets, or one that is simulated. */
export interface LiveCluster {
  readonly api: ApiObjects
  readonly testBed: Pick<TestBed, 'layout' | 'gauge' | 'flow'>
  readonly pods: {
    roomOf(pod: string): PodRoom | undefined
    /** Whether some pod answers there now. */
    serves(ip: string, port: number): boolean
  }
  /** For kubectl on this machine; empty where there is none. */
  readonly kubeconfig: string
  /** Runs the daemon in this mode from now on; a running one ends first. */
  useMode(mode: ModeName, options: ModeOptions): Promise<unknown>
}
