import { groups, type Key } from '../../lib/config/key.js'
import { keyEntries, retiredFlags, retiredKeys } from '../../lib/config/keys.js'
import { actionFlags } from '../../lib/config/flags.js'
import { apiVersion, kind } from '../../lib/config/file.js'

const introduction = `# Configuration

<!-- Written by \`npm run docs\` from lib/config/keys-*.ts; change it there. -->

Every value can be set in the file given by \`--config\`, a \`${kind}\` of
\`${apiVersion}\`. Most values have a flag, too. The proxy accepts every file that is valid for
kube-proxy 1.36, unless an IPv4 address in it has leading zeros (\`010.1.2.3\`): programs read those differently.

- **Strict.** An unknown key, a key that appears twice or a value of the wrong type stops the start
  with exit code 2 and a message \`file:line: key: value\`. Nothing on the node is changed.
- **With \`--config\`, flags are ignored**, as in kube-proxy, except those marked *over the file*. The
  log names the ignored flags.
- **Empty and zero.** In a file, \`""\` or \`0\` for a value marked *0 = default* means the default,
  as in kube-proxy. An empty \`--healthz-bind-address=\` or \`--metrics-bind-address=\` switches that
  server off. A file cannot, nor can one that \`--write-config-to\` wrote with such a flag.
- **Changes of the file** are noticed within seconds, also in a ConfigMap volume. The process goes on, where
  kube-proxy ends. Keys marked *live* take effect at once. They end no connection, except those
  to a node port on 127.0.0.1 that \`nodePortAddresses\` no longer covers. For keys marked *restart*
  the old value stays in use; the log names each once, with both values.
- **A file that is missing, half written or wrong** changes nothing: the last good configuration stays, and the
  log says what is wrong. A file of more than 262,144 characters is wrong, too, also at the start: kube-proxy
  has no such limit, but a file with every key has a few thousand.
- **What is in use.** \`/configz\` on the metrics port shows all values, where each of them was set, what
  waits for a restart, the IP families that are served, and what is known of the Node object.
  \`/healthz?verbose\` there tells about the file, as do the metrics \`kubeproxy_config_file_valid\` and
  \`kubeproxy_config_keys_waiting_for_restart\`. \`/flagz\` there has the values as flags, and \`/statusz\` a
  summary for people.
- **Feature gates** are those of kube-proxy 1.37. The log names one that is unknown, or has no effect here.
- Durations are written as in Go: \`250ms\`, \`30s\`, \`1h30m\`.
- **Exit codes:** 0: done, or stopped by SIGTERM, SIGINT or SIGHUP. 1: failed. 2: a flag, a file or an argument
  is wrong.
`

/** docs/configuration.md. */
export function configurationMarkdown(): string {
  const sections = groups.flatMap((group) => {
    const rows = keyEntries.filter(([, key]) => key.group === group)
    return [`\n## ${group}\n`, table(rows.map(([path, key]) => row(path, key)))]
  })
  return [
    introduction,
    '\n## Actions\n',
    list(actionFlags.map(({ flag, doc }) => `\`--${flag}\`: ${doc}.`)),
    ...sections,
    '\n## Accepted from older releases\n',
    'These have no effect, and the log names them.\n\n',
    list([
      ...Object.entries(retiredKeys).map(([path, advice]) => `\`${path}\` in the file: ${advice}.`),
      ...[...new Set(Object.values(retiredFlags))].map((advice) => {
        const flags = Object.keys(retiredFlags).filter((flag) => retiredFlags[flag] === advice)
        return `${flags.map((flag) => code(`--${flag}`)).join(', ')}: ${advice}.`
      }),
    ]),
  ].join('')
}

function row(path: string, key: Key<unknown>): readonly string[] {
  const notes = [
    `${key.doc}.`,
    key.kind.choices ? `One of ${key.kind.choices.map((choice) => code(choice)).join(', ')}.` : '',
    key.known === '1.25' ? 'From kube-proxy 1.25.' : '',
    key.known === 'here' ? 'Only here.' : '',
    key.overFile ? '*Over the file.*' : '',
    key.zeroIsDefault ? '*0 = default.*' : '',
    key.noEffect === undefined ? '' : `**No effect here:** ${key.noEffect}.`,
  ]
  const flags = key.flags.map((flag) => code(`--${flag}`)).join(', ')
  const initial = key.kind.toYaml(key.initial)
  const shown = typeof initial === 'string' ? initial : JSON.stringify(initial)
  const change = key.noEffect === undefined ? (key.isLive ? 'live' : 'restart') : ''
  return [code(path), flags, code(shown), change, notes.filter((note) => note !== '').join(' ')]
}

function table(rows: readonly (readonly string[])[]): string {
  const head = ['Key', 'Flag', 'Default', 'Change', 'Meaning']
  const lines = [head, head.map(() => '---'), ...rows].map((cells) => {
    return `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`
  })
  return `\n${lines.join('\n')}\n`
}

function list(items: readonly string[]): string {
  return `\n${items.map((item) => `- ${item}`).join('\n')}\n`
}

function code(text: string): string {
  return text === '' ? '`""`' : `\`${text}\``
}
