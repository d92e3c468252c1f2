import t, { type Test } from 'tap'
import { fileURLToPath } from 'node:url'
import { programSkip } from '../support/netns.js'
import { runCommand } from '../support/run-command.js'

/** Real shells load the scripts and say what they complete. */

const main = fileURLToPath(new URL('../../lib/cli/main.js', import.meta.url))
const whole = fileURLToPath(new URL('../../lib/main.js', import.meta.url))

async function scriptFor(shell: string, program = main): Promise<string> {
  const args = [program, 'completion', shell]
  const { code, stdout, stderr } = await runCommand(process.execPath, args)
  if (code !== 0) throw new Error(stderr)
  return stdout
}

/** The typed words after the program, and some of the offered ones; `!x` must not be offered. */
const cases: readonly (readonly [typed: string, offered: readonly string[]])[] = [
  ['', ['explain', 'completion', 'cleanup', '!--proxy-mode', '!playground']],
  ['exp', ['explain', '!render']],
  ['--proxy-mode ip', ['iptables', 'ipvs', '!nftables']],
  ['--proxy-mode ipvs --mas', ['--master', '--masquerade-all', '!--logtostderr']],
  ['--masquerade-all --proxy-m', ['--proxy-mode']],
  ['explain --prox', ['--proxy-mode', '!--proxy-port-range']],
  ['explain web --mode n', ['nftables', '!ipvs']],
  ['top -o ', ['json', 'yaml', 'wide']],
  ['top --output y', ['yaml', '!json']],
  ['render --family ', ['ipv4', 'ipv6', 'both']],
  ['render --manifests package.js', ['package.json', '!--manifests']],
  ['completion ', ['bash', 'zsh', 'fish']],
]

function check(t: Test, typed: string, got: readonly string[], offered: readonly string[]) {
  for (const word of offered) {
    const isOffered = got.includes(word.replace(/^!/, ''))
    t.equal(isOffered, !word.startsWith('!'), `kube-proxy ${typed}<TAB>: ${word}`)
  }
}

const lines = (text: string) => text.split('\n').filter((line) => line !== '')

t.test('bash completes commands, flags and values', { skip: programSkip('bash') }, async (t) => {
  const ask = async (words: readonly string[], script: string) => {
    const asking = `${script}
compopt() { :; }
[[ $(complete -p kube-proxy) == 'complete -F _kube_proxy kube-proxy' ]] || exit 9
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_kube_proxy
printf '%s\\n' "\${COMPREPLY[@]}"`
    const args = ['--norc', '--noprofile', '-c', asking, 'bash', 'kube-proxy', ...words]
    const { code, stdout, stderr } = await runCommand('bash', args)
    t.equal(code, 0, stderr)
    return lines(stdout)
  }
  const script = await scriptFor('bash')
  for (const [typed, offered] of cases)
    check(t, typed, await ask(typed.split(' '), script), offered)
  const assigned = await ask(['--proxy-mode', '=', 'ip'], script)
  check(t, '--proxy-mode=ip', assigned, ['iptables', 'ipvs', '!nftables'])
  check(t, '--proxy-mode=', await ask(['--proxy-mode', '='], script), ['nftables'])
})

t.test('fish completes commands, flags and values', { skip: programSkip('fish') }, async (t) => {
  const script = await scriptFor('fish')
  const home = t.testdir({})
  for (const [typed, offered] of cases) {
    const asking = `${script}\ncomplete -C "kube-proxy $argv[1]"`
    const args = [`HOME=${home}`, 'fish', '--no-config', '-c', asking, '--', typed]
    const { code, stdout, stderr } = await runCommand('env', args)
    t.equal(code, 0, stderr)
    const got = lines(stdout).map((line) => line.split('\t')[0] ?? '')
    check(t, typed, got, offered)
  }
})

/** Types into an interactive zsh, as a user does, and prints the words on its line. */
const typeInto = `
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'PS1= ; unsetopt zle_bracketed_paste; stty -echo; autoload -U compinit; compinit -u -D; setopt no_beep; source <(print -r -- "$SCRIPT"); kube-proxy() { print -r -- "GOT:$*:"; }; print RE''ADY'
zpty -r shell out '*READY*'
zpty -w -n shell "kube-proxy $1"$'\\t'$'\\n'
zpty -r shell out '*GOT:*:*'
print -r -- "$out"
zpty -d shell`

t.test('zsh completes commands, flags and values', { skip: programSkip('zsh') }, async (t) => {
  const script = await scriptFor('zsh')
  const unique = [
    ['exp', 'explain'],
    ['--proxy-mode ipt', '--proxy-mode iptables'],
    ['--masquerade-all --proxy-m', '--masquerade-all --proxy-mode'],
    ['explain --proxy', 'explain --proxy-mode'],
    ['explain web --mode n', 'explain web --mode nftables'],
    ['top --output=y', 'top --output=yaml'],
    ['render --manifests package.js', 'render --manifests package.json'],
    ['completion f', 'completion fish'],
  ]
  const home = t.testdir({})
  for (const [typed = '', whole = ''] of unique) {
    const env = [`HOME=${home}`, `SCRIPT=${script}`, 'TERM=vt100']
    const { stdout } = await runCommand('env', [...env, 'zsh', '-f', '-c', typeInto, 'zsh', typed])
    t.equal(/GOT:(.*):/.exec(stdout)?.[1]?.trim(), whole, `kube-proxy ${typed}<TAB>`)
  }
})

t.test('the whole package completes its own name and commands', async (t) => {
  const script = await scriptFor('bash', whole)
  t.match(script, /^complete -F _kube_proxy_ts kube-proxy-ts$/m)
  t.match(script, /values='.* playground apiserver[ ']/)
  const wrong = await runCommand(process.execPath, [main, 'completion', 'tcsh'])
  t.match(wrong, { code: 2, stdout: '', stderr: /Allowed choices are bash, zsh, fish/ })
})
