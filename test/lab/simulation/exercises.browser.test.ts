import t from 'tap'
import { exercises } from '../../../lib/lab/playground/exercises.js'
import { browserPath, hasBrowser } from '../playground/opened-page.js'
import { Keyboard } from './keyboard.js'
import { withOpenedSite, withSite, type OpenedSite } from './opened-site.js'

const skip = hasBrowser ? false : `there is no ${browserPath}; apt-get install chromium`

const service = 'Service default/web'

const solutions: Readonly<Record<string, (keys: Keyboard, opened: OpenedSite) => Promise<void>>> = {
  nobody: (keys) => keys.press('#more'),
  selector: (keys) => keys.edit(service, (yaml) => yaml.replace('app: wbe', 'app: web')),
  readiness: async (keys, { page, see }) => {
    for (let ready = 1; ready <= 3; ready++) {
      await keys.press('#pods [data-action=ready]')
      await page.waitForFunction(`document.querySelectorAll('#pods .ready').length === ${ready}`)
    }
    await see('#pods .state', 'ready')
  },
  'target-port': (keys) =>
    keys.edit(service, (yaml) => yaml.replace('targetPort: 8088', 'targetPort: 8080')),
  'client-port': (keys) => keys.edit(service, (yaml) => yaml.replace('port: 8080\n', 'port: 80\n')),
  'internal-local': (keys) => keys.press('#internal', 'Space'),
  'external-local': (keys) => keys.press('#external', 'Space'),
  ranges: async (keys) => {
    await keys.write('#ranges', '192.168.50.0/24')
    await keys.press('#ranges')
  },
  intruder: (keys) =>
    keys.edit(service, (yaml) =>
      yaml.replace(/selector:\n( +)app: web\n/, 'selector:\n$1app: web\n$1tier: front\n'),
    ),
  'by-hand': async (keys, { page }) => {
    const text = await page.locator('#pods .where-is').first().innerText()
    const address = /^\S+/.exec(text)?.[0] ?? ''
    await keys.edit('EndpointSlice default/web-by-hand', (yaml) =>
      yaml.replace(/addresses:\n( +)- \S+/, `addresses:\n$1- ${address}`),
    )
  },
}

t.test('each exercise is broken, and a keyboard is enough to solve it', { skip }, async (t) => {
  t.same(
    Object.keys(solutions),
    exercises.map(({ id }) => id),
  )
  t.equal(exercises.length, 10)
  await withSite(async ({ url }) => {
    for (const { id, title, hints } of exercises) {
      await withOpenedSite(`${url}#exercise=${id}`, async (opened) => {
        const { page, complaints, see } = opened
        const keys = new Keyboard(opened)
        await see('#exercises h3', title)
        await page.locator('#pending:empty').waitFor({ state: 'attached' })
        const broken = await keys.check(/^Not yet: of 36 requests from/)
        t.notMatch(broken, /36 were answered/, `${id}: ${broken}`)
        await keys.press('#exercises .tip summary')
        await see('#exercises .tip[open]', hints[0] ?? '')
        await solutions[id]?.(keys, opened)
        const solved = await keys.check(/^Solved/)
        t.match(solved, /36 were answered\.$/, `${id}: ${solved}`)
        t.match(await page.evaluate(`document.activeElement?.dataset.key`), 'check', 'focus stays')
        await see('#exercises-done', '1 of 10 solved')
        t.same(complaints, [])
      })
    }
  })
})

t.test(
  'one exercise leads to the next, and all leave a cluster that works',
  { skip },
  async (t) => {
    await withSite(async ({ url }) => {
      await withOpenedSite(url, async (opened) => {
        const { page, see, press } = opened
        const keys = new Keyboard(opened)
        await keys.press('#show-exercises')
        await keys.press('#exercises [data-key=by-hand]')
        await see('#exercises h3', '10. ')
        await keys.press('#exercises [data-key=all]')
        await see('#exercises', 'Find out why')
        await keys.press('#exercises [data-key=intruder]')
        await see('#exercises h3', '9. ')
        await solutions['intruder']?.(keys, opened)
        await keys.check(/^Solved/)
        await keys.press('#exercises [data-key=again]')
        await keys.check(/^Not yet: of 36 requests from a pod to \S+, .*were refused/)
        await solutions['intruder']?.(keys, opened)
        await keys.check(/^Solved/)
        await keys.press('#exercises [data-key=next]')
        await see('#exercises h3', '10. ')
        await page.waitForURL(/exercise=by-hand/)
        await keys.check(/^Not yet/)
        await keys.press('#exercises [data-key=again]')
        await page.locator('#exercises [data-key=report]:empty').waitFor({ state: 'attached' })
        await see('#exercises h3', '10. ')
        await keys.press('#show-lessons')
        await keys.press('#lessons [data-key=cluster-ip]')
        await see('#lessons h3', '1. ')
        t.equal(await page.locator('#pods li').count(), 3, 'what an exercise added is gone')
        await press('Send 100')
        await see('#asked', 'to 100 requests')
        t.equal(await page.locator('#bars .bar').count(), 3, 'all three pods answer')
      })
    })
  },
)
