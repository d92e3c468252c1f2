import { fileURLToPath } from 'node:url'
import t from 'tap'
import { readCases, type parseCases } from '../conformance/case-file.js'
import { casesFolder } from '../conformance/cases-folder.js'
import { bundleOf, parsedCases, withPlaces } from './bundles.js'

t.test(
  'a module in a bundle finds what lies beside it, and other programs as bundles',
  async (t) => {
    const path = fileURLToPath(new URL('../conformance/process-subject.js', import.meta.url))
    const moved = (text: string) => withPlaces(text, path)
    t.equal(
      moved(`new URL('./subject-main.js', import.meta.url)`),
      `new URL("file://${bundleOf('test/conformance/subject-main.js')}")`,
    )
    t.match(
      moved(`new URL('./case.js', import.meta.url)`),
      /"file:.*\/test\/conformance\/case\.js"/,
    )
    t.match(moved(`new URL('../../../test/cases', import.meta.url)`), /"file:[^.]*\/test\/cases"/)
    t.equal(moved('of(import.meta.url)'), `of("file://${path}")`)
  },
)

t.test('a guest has the same cases without reading YAML', async (t) => {
  const url = `data:text/javascript,${encodeURIComponent(parsedCases())}`
  const module = (await import(url)) as { readCases: () => ReturnType<typeof parseCases> }
  t.same(module.readCases(), JSON.parse(JSON.stringify(readCases(casesFolder))))
})
