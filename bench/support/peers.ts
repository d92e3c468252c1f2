/** Another proxy to be measured in the same run, as `--peer NAME=COMMAND` names it. */
export interface Peer {
  readonly name: string
  /** With the placeholders {kubeconfig}, {node} and {mode}. */
  readonly command: string
}

export function parsePeer(text: string): Peer {
  const [, name, command] = /^([\w.-]+)=(.+)$/s.exec(text) ?? []
  if (name === undefined || command === undefined) {
    throw new Error(
      `--peer ${text}: expected NAME=COMMAND, such as ` +
        "'go=/usr/local/bin/kube-proxy --kubeconfig {kubeconfig} --hostname-override {node} --proxy-mode {mode}'",
    )
  }
  return { name, command }
}

/** The words of a command; quotes keep blanks together. No shell is used. */
export function argumentsOf(
  command: string,
  values: Readonly<Record<'kubeconfig' | 'node' | 'mode', string>>,
): readonly string[] {
  const words = [...command.matchAll(/"([^"]*)"|'([^']*)'|(\S+)/g)]
  return words.map(([, double, single, bare]) =>
    (double ?? single ?? bare ?? '').replace(
      /\{(kubeconfig|node|mode)\}/g,
      (_, key: 'kubeconfig' | 'node' | 'mode') => values[key],
    ),
  )
}
