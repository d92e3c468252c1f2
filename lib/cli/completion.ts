import { Argument, type Command } from 'commander'
import { shapeOf, type CommandShape, type OptionShape } from './command-shape.js'

const scripts = { bash: bashScript, zsh: zshScript, fish: fishScript } as const

type Shell = keyof typeof scripts

/** Adds `kube-proxy completion`: a script that makes a shell complete commands, flags and values. */
export function addCompletionCommand(program: Command): void {
  const name = program.name()
  program
    .command('completion')
    .description('print a script that completes commands, flags and their values in a shell')
    .addArgument(new Argument('<shell>', 'the shell').choices(Object.keys(scripts)))
    .addHelpText(
      'after',
      `
bash:  source <(${name} completion bash)
zsh:   source <(${name} completion zsh)
fish:  ${name} completion fish | source`,
    )
    .action((wanted: Shell) => {
      process.stdout.write(scripts[wanted](shapeOf(program)))
    })
}

const single = (text: string) => `'${text.replaceAll("'", String.raw`'\''`)}'`
const functionOf = ({ name }: CommandShape) => `_${name.replaceAll('-', '_')}`
const namesOf = (options: readonly OptionShape[]) => options.flatMap(({ names }) => names)

/** The command is always the first word, so the others need no parsing. */
function bashScript(program: CommandShape): string {
  const branch = (pattern: string, { options, choices }: CommandShape) =>
    `  ${pattern})
    flags=${single(namesOf(options).join(' '))}
    words=${single(choices.join(' '))}
    case $flag in
${options.flatMap(bashValues).join('\n')}
    *) is_value= ;;
    esac
    ;;`
  const name = functionOf(program)
  return `# Completion of ${program.name} for bash.
${name}() {
  local cur=\${COMP_WORDS[COMP_CWORD]} flag=\${COMP_WORDS[COMP_CWORD - 1]}
  local command= flags words values= is_value=yes
  # Bash makes three words of --flag=value.
  if [[ $cur == '=' ]]; then
    cur=
  elif [[ $flag == '=' ]]; then
    flag=\${COMP_WORDS[COMP_CWORD - 2]}
  fi
  if ((COMP_CWORD > 1)); then command=\${COMP_WORDS[1]}; fi
  case $command in
${program.commands.map((each) => branch(each.name, each)).join('\n')}
${branch('*', program)}
  esac
  if [[ -z $is_value ]]; then
    values=$words
    if ((COMP_CWORD == 1)); then values=${single(program.commands.map((each) => each.name).join(' '))}; fi
    if [[ $cur == -* ]]; then values=$flags; fi
  elif [[ -z $values ]]; then
    compopt -o filenames
    mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    return
  fi
  mapfile -t COMPREPLY < <(compgen -W "$values" -- "$cur")
}
complete -F ${name} ${program.name}
`
}

function bashValues({ names, takesValue, choices }: OptionShape): readonly string[] {
  return takesValue ? [`    ${names.join(' | ')}) values=${single(choices.join(' '))} ;;`] : []
}

function zshScript(program: CommandShape): string {
  const name = functionOf(program)
  const specs = ({ options, choices }: CommandShape) =>
    [...options.flatMap(zshOption), single(`*:argument:(${choices.join(' ')})`)].join(' \\\n      ')
  return `#compdef ${program.name}
# Completion of ${program.name} for zsh.
${name}() {
  local -a commands
  commands=(
${program.commands.map((each) => `    ${single(`${each.name}:${each.summary}`)}`).join('\n')}
  )
  if ((CURRENT == 2)) && [[ $words[2] != -* ]]; then
    _describe command commands
    return
  fi
  case $words[2] in
${program.commands
  .map(
    (each) =>
      `  ${each.name})\n    shift words\n    ((CURRENT--))\n    _arguments ${specs(each)}\n    ;;`,
  )
  .join('\n')}
  *)
    _arguments ${specs(program)}
    ;;
  esac
}
if [[ $funcstack[1] == _${program.name} ]]; then
  ${name} "$@"
else
  compdef ${name} ${program.name}
fi
`
}

function zshOption({ names, description, takesValue, choices }: OptionShape): readonly string[] {
  const text = description.replaceAll(/[\\[\]:]/g, String.raw`\$&`)
  const value = choices.length > 0 ? `(${choices.join(' ')})` : '_files'
  return names.map((name) => {
    const assigns = name.startsWith('--') ? '=' : '+'
    return single(takesValue ? `${name}${assigns}[${text}]:value:${value}` : `${name}[${text}]`)
  })
}

function fishScript(program: CommandShape): string {
  const all = program.commands.map(({ name }) => name)
  const lines = [`# Completion of ${program.name} for fish.`, `complete -c ${program.name} -f`]
  const add = (when: string, rest: string) =>
    lines.push(`complete -c ${program.name} -n ${single(when)} ${rest}`)
  const inNone = `not __fish_seen_subcommand_from ${all.join(' ')}`
  for (const option of program.options) add(inNone, fishOption(option))
  for (const { name, summary, options, choices } of program.commands) {
    add(inNone, `-a ${name} -d ${fish(summary)}`)
    const inIt = `__fish_seen_subcommand_from ${name}`
    for (const option of options) add(inIt, fishOption(option))
    if (choices.length > 0) add(inIt, `-a ${fish(choices.join(' '))}`)
  }
  return `${lines.join('\n')}\n`
}

/** In fish a backslash is special between single quotes, too. */
const fish = (text: string) => `'${text.replaceAll(/[\\']/g, String.raw`\$&`)}'`

function fishOption({ names, description, takesValue, choices }: OptionShape): string {
  const flags = names.map((name) =>
    name.startsWith('--') ? `-l ${name.slice(2)}` : `-s ${name.slice(1)}`,
  )
  const value = choices.length > 0 ? `-x -a ${fish(choices.join(' '))}` : '-r -F'
  return [...flags, ...(takesValue ? [value] : []), `-d ${fish(description)}`].join(' ')
}
