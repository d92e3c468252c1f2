import t from 'tap'
import { fileURLToPath } from 'node:url'
import { parse } from 'yaml'
import { commandThread } from '../support/command-thread.js'
import { runCommand } from '../support/run-command.js'

/** A flag has the same name and meaning in all commands. */

const whole = fileURLToPath(new URL('../../lib/main.js', import.meta.url))
const examples = fileURLToPath(new URL('../../../examples/services', import.meta.url))
const run = commandThread()
const node = ['--manifests', examples, '--addresses', '192.0.2.1,127.0.0.1']

const explain = ['explain', 'web', ...node, '--from', 'outside']

t.test('-o json, its synonym --json and -o yaml give the same data in every command', async (t) => {
  const render = ['render', ...node, '--family', 'both']
  for (const command of [explain, render, ['check']]) {
    const [name = ''] = command
    const [json, synonym, yaml, long] = await Promise.all([
      run(...command, '-o', 'json'),
      run(...command, '--json'),
      run(...command, '-o=yaml'),
      run(...command, '--output=yaml'),
    ])
    const data: unknown = JSON.parse(json.stdout)
    t.equal(synonym.stdout, json.stdout, name)
    t.same(parse(yaml.stdout), data, `${name} in YAML`)
    t.notMatch(yaml.stdout, /^\{|^\s*- &|: \*a/m, `${name} in YAML of its own, without anchors`)
    t.equal(long.stdout, yaml.stdout, name)
  }
  const { mode, families } = JSON.parse((await run(...render, '-o', 'json')).stdout) as {
    mode: string
    families: { family: string; rules: string }[]
  }
  t.equal(mode, 'iptables')
  t.same(
    families.map(({ family }) => family),
    ['IPv4', 'IPv6'],
  )
  t.match(families[0]?.rules, /^\*filter[^]*-d 10\.96\.0\.10\/32 /m)
})

t.test('-o wide prints the same text if a command has no more to show', async (t) => {
  const [wide, text] = await Promise.all([run(...explain, '-o', 'wide'), run(...explain)])
  t.equal(wide.stdout, text.stdout)
  t.match(text.stdout, /^TCP from a client outside/)
})

t.test('an unknown format is refused by all commands alike, before they do anything', async (t) => {
  const commands = ['explain x', 'render', 'check', 'cleanup', 'diff', 'trace x', 'top']
  for (const command of commands) {
    const { code, stdout, stderr } = await run(...command.split(' '), '-o', 'xml')
    t.equal(code, 2, command)
    t.equal(stdout, '', command)
    t.match(stderr, /-o, --output <format>' argument 'xml' is invalid.* json, yaml, wide/, command)
  }
})

t.test(
  'the mode and the name of the node have the flags of the proxy, and short ones',
  async (t) => {
    const [long, short, other] = await Promise.all([
      run(...explain, '--proxy-mode', 'nftables', '--hostname-override', 'node-2'),
      run(...explain, '--mode', 'nftables', '--node', 'node-2'),
      run(...explain),
    ])
    t.match(long.stdout, /in nftables mode:[^]*on node-1$/m)
    t.equal(short.stdout, long.stdout)
    t.not(other.stdout, long.stdout)
    const rendered = await Promise.all(
      ['--proxy-mode', '--mode'].map((flag) => run('render', ...node, `${flag}=nftables`)),
    )
    t.match(rendered[0]?.stdout, /^add table ip kube-proxy /m)
    t.equal(rendered[1]?.stdout, rendered[0]?.stdout)
    for (const name of ['explain', 'diff', 'trace', 'top', 'render']) {
      const { stdout } = await run(name, '--help')
      t.match(stdout, /--mode, --proxy-mode <mode>[^]*--node, --hostname-override <name>/, name)
    }
    const play = await runCommand(process.execPath, [whole, 'playground', '--proxy-mode', 'x'])
    t.match(play, { code: 2, stderr: /^kube-proxy: --proxy-mode: there is no mode "x"; there are/ })
    const hns = await runCommand(process.execPath, [whole, 'playground', '--mode=kernelspace'])
    t.match(hns, { code: 2, stderr: /"kernelspace"; .*on Windows it has winuserspace/ })
  },
)
