import { Option, type Command } from 'commander'
import { addOutputOptions } from './shared-options.js'
import { addNodeOptions } from './seen-node.js'
import { protocols } from '../state/names.js'

type Trace = (typeof import('./trace-run.js'))['trace']

/** Adds `kube-proxy trace`, which follows a real connection through the rules. */
export function addTraceCommand(program: Command): void {
  const command = addNodeOptions(
    program
      .command('trace')
      .description('follow a real connection through the rules of the kernel; needs root')
      .argument('<target>', 'NAMESPACE/NAME[:PORT], NAME[:PORT], or IP:PORT'),
  )
    .addOption(
      new Option(
        '--protocol <name>',
        "the protocol; default: that of the Service's port, or TCP",
      ).choices(protocols),
    )
    .option('--send', 'make the connection from this node instead of waiting for one')
    .option('--count <n>', 'end after this number of connections', '1')
    .option('--timeout <duration>', 'end when no connection comes in this time', '60s')
  addOutputOptions(command, '; a line of JSON for each connection')
    .addHelpText('after', usage)
    .action(async (...given: Parameters<Trace>) => (await import('./trace-run.js')).trace(...given))
}

const usage = `
Every rule of nftables and of both kinds of iptables is shown. In ipvs mode IPVS tells which endpoint
it chose; in ebpf mode the counters of the proxy tell of connections to the Service that were translated
at their sockets. The command leaves nothing in the kernel, even when it is killed.`
