import t from 'tap'
import { lessons } from '../../../lib/lab/playground/lessons.js'
import { predictions } from '../../../lib/lab/playground/lesson-predictions.js'
import { browserPath, hasBrowser } from '../playground/opened-page.js'
import { Keyboard } from './keyboard.js'
import { withOpenedSite, withSite, type OpenedSite } from './opened-site.js'
import { until } from '../../support/until.js'

const skip = hasBrowser ? false : `there is no ${browserPath}; apt-get install chromium`

const nothing = () => Promise.resolve()

/** A learner who has only a keyboard. */
class Learner extends Keyboard {
  readonly #opened: OpenedSite

  constructor(opened: OpenedSite) {
    super(opened)
    this.#opened = opened
  }

  /**
   * Does a task. It answers the task's question first, if there is one. Then it begins, and sends
   * until so many tasks are done.
   */
  async until(
    lesson: string,
    done: number,
    begin: () => Promise<void> = nothing,
    send: () => Promise<void> = nothing,
  ): Promise<void> {
    const { page } = this.#opened
    const { choices, right } = predictions[`${lesson}/${done - 1}`] ?? {}
    const expected = choices?.[right ?? -1]
    if (expected !== undefined) {
      await this.press(`#lessons .expected button:text-is("${expected}")`)
      await page.locator('#lessons .expected [aria-pressed=true]', { hasText: expected }).waitFor()
    }
    await begin()
    const count = () => page.locator('#lessons .tasks .done').count()
    const isDone = async () => {
      if ((await count()) >= done) return true
      await send()
      return false
    }
    await until(`task ${done} of ${lesson}`, isDone)
  }

  send = () => this.#sent('#send-1')
  sendMany = () => this.#sent('#send-100')

  /** Sends and waits for the answers, because one request too many could do the next task too. */
  async #sent(button: string): Promise<void> {
    const { page } = this.#opened
    const before = await page.locator('#asked').innerText()
    await this.press(button)
    await page.waitForFunction(`document.querySelector('#asked').textContent !== '${before}'`)
  }

  async choose(group: string, value: string): Promise<void> {
    await this.press(`#${group} [data-value="${value}"]`)
    await this.#opened.page
      .locator(`#${group} [data-value="${value}"][aria-pressed=true]`)
      .waitFor()
    if (group === 'modes') await this.#opened.see('#status', `running in ${value} mode`)
  }

  /** Scales, and waits until the kernel has the pods too. */
  async scale(to: number): Promise<void> {
    const { page } = this.#opened
    const now = async () => Number(await page.locator('#replicas').innerText())
    for (let at = await now(); at !== to; at = await now()) {
      await this.press(at < to ? '#more' : '#fewer')
      await page.waitForFunction(`document.querySelector('#replicas').textContent !== '${at}'`)
    }
    const all = `document.querySelectorAll('#pods li').length === ${to}`
    const ready = `document.querySelectorAll('#pods .ready').length === ${to}`
    await page.waitForFunction(`${all} && ${ready}`)
    await page.locator('#pending:empty').waitFor({ state: 'attached' })
  }
}

type Lesson = (learner: Learner, opened: OpenedSite) => Promise<void>

const ways: Readonly<Record<string, Lesson>> = {
  'cluster-ip': async (learner) => {
    await learner.until('cluster-ip', 1, nothing, learner.send)
    const terminate = () => learner.press('#pods [data-action=terminate]')
    await learner.until('cluster-ip', 2, terminate, learner.sendMany)
  },
  userspace: async (learner) => {
    await learner.until('userspace', 1, () => learner.choose('modes', 'userspace'))
    await learner.until('userspace', 2, nothing, learner.send)
    await learner.until('userspace', 3, nothing, learner.send)
  },
  iptables: async (learner) => {
    await learner.until('iptables', 1, nothing, learner.sendMany)
    const change = () => learner.choose('modes', 'iptables')
    await learner.until('iptables', 2, change, learner.sendMany)
    await learner.until('iptables', 3, nothing, learner.send)
  },
  statistics: async (learner) => {
    await learner.until('statistics', 1, nothing, learner.sendMany)
    await learner.until('statistics', 2, () => learner.scale(2), learner.sendMany)
  },
  ipvs: async (learner) => {
    await learner.until('ipvs', 1, () => learner.choose('rules-modes', 'ipvs'))
    await learner.until('ipvs', 2, () => learner.choose('schedulers', 'sh'))
    await learner.until('ipvs', 3, () => learner.choose('modes', 'ipvs'), learner.send)
  },
  nftables: async (learner) => {
    await learner.until('nftables', 1, () => learner.choose('modes', 'nftables'))
    await learner.until('nftables', 2, () => learner.scale(5))
    await learner.until('nftables', 3, nothing, learner.sendMany)
  },
  ebpf: async (learner) => {
    await learner.until('ebpf', 1, () => learner.choose('rules-modes', 'nftables'))
    await learner.until('ebpf', 2, () => learner.choose('rules-modes', 'ebpf'))
    await learner.until('ebpf', 3, () => learner.scale(5))
    await learner.until('ebpf', 4, () => learner.choose('modes', 'ebpf'), learner.send)
  },
  outside: async (learner) => {
    await learner.choose('senders', 'outside')
    await learner.choose('targets', 'NodePort')
    await learner.until('outside', 1, nothing, learner.send)
    await learner.until('outside', 2, () => learner.press('#external', 'Space'), learner.send)
    const ranges = async (text: string) => {
      await learner.write('#ranges', text)
      await learner.press('#ranges')
    }
    const keepOut = async () => {
      await learner.choose('types', 'LoadBalancer')
      await ranges('10.0.0.0/8')
      await learner.choose('targets', 'LoadBalancer')
    }
    await learner.until('outside', 3, keepOut, learner.send)
    await learner.until('outside', 4, () => ranges('192.168.50.0/24'), learner.send)
  },
  trouble: async (learner, { page, see }) => {
    await learner.until('trouble', 1, () => learner.scale(0), learner.send)
    await learner.scale(1)
    await learner.choose('senders', 'backend')
    await learner.until('trouble', 2, nothing, learner.send)
    await learner.choose('senders', 'client-pod')
    await learner.scale(2)
    await learner.press('#services button[data-key="default/echo"]')
    await see('#targets', ':7')
    await learner.send()
    await see('#log tr:first-child', 'client-pod')
    const answered = await page.locator('#log tr:first-child td').nth(3).innerText()
    const terminate = () =>
      learner.press(`#pods li:has-text("${answered}") [data-action=terminate]`)
    await learner.until('trouble', 3, terminate, learner.send)
  },
  dark: async (learner, { page, see }) => {
    await learner.choose('modes', 'nftables')
    const pod = (await page.locator('#pods .name').first().getAttribute('title')) ?? ''
    const goDark = () =>
      learner.edit(`Pod default/${pod}`, (yaml) =>
        yaml.replace('metadata:\n', 'metadata:\n  annotations: { playground/process: dark }\n'),
      )
    await learner.until('dark', 1, goDark, learner.send)
    const short = pod.replace(/-[0-9a-f]+-/, '-')
    await see('#log', `sent to ${short}`)
    await see('#bars', `dropped at ${short}`)
    await learner.until('dark', 2, () => learner.choose('modes', 'userspace'), learner.send)
    await learner.choose('modes', 'nftables')
    const check = '{ kube-proxy-ts/health-check: tcp, kube-proxy-ts/health-check-interval: 500ms }'
    const addCheck = () =>
      learner.edit('Service default/web', (yaml) =>
        yaml.replace('metadata:\n', `metadata:\n  annotations: ${check}\n`),
      )
    await learner.until('dark', 3, addCheck, learner.send)
    await see('#pods li:first-child .state', 'failing')
    await see('#picture', 'failing')
    await page.waitForFunction(`document.querySelectorAll('#ways .way').length === 2`)
    await learner.edit(`Pod default/${pod}`, (yaml) => yaml.replace('process: dark', 'process: on'))
    await see('#pods li:first-child .state', 'ready')
    await page.waitForFunction(`document.querySelectorAll('#ways .way').length === 3`)
  },
}

t.test('each lesson is learned with a keyboard, one after the other', { skip }, async (t) => {
  t.same(
    Object.keys(ways),
    lessons.map(({ id }) => id),
  )
  await withSite(async ({ url }) => {
    await withOpenedSite(url, async (opened) => {
      const { page, complaints, see } = opened
      const learner = new Learner(opened)
      for (const [index, { id, title, moral }] of lessons.entries()) {
        await learner.press(`#lessons [data-key="${id}"]`)
        await see('#lessons h3', `${index + 1}. ${title}`)
        await page.waitForFunction(`document.querySelectorAll('#pods .ready').length === 3`)
        t.equal(await page.locator('#lessons .moral').count(), 0, `${id}: not done from the start`)
        await ways[id]?.(learner, opened)
        await see('#lessons .moral', moral)
        t.notMatch(await page.locator('#lessons').innerText(), /and it was:/, `${id}: as expected`)
        await learner.press('#lessons [data-key=all]')
        await see('#lessons-done', `${index + 1} of ${lessons.length} done`)
      }
      t.same(complaints, [])
    })
  })
})

t.test(
  'buttons belong to the lesson that is shown, and the focus is not lost',
  { skip },
  async (t) => {
    await withSite(async ({ url }) => {
      await withOpenedSite(url, async (opened) => {
        const { page, see } = opened
        const learner = new Learner(opened)
        const focused = async (wanted: string, why: string) =>
          t.ok(await page.locator(`${wanted}:focus`).isVisible(), why)
        await learner.press('#lessons [data-key=cluster-ip]')
        await see('#lessons h3', '1. ')
        await focused('#lessons h3', 'the title of the lesson has the focus of its line')
        await page.waitForFunction(`document.querySelectorAll('#pods .ready').length === 3`)
        await ways['cluster-ip']?.(learner, opened)
        await page.waitForFunction(`document.querySelectorAll('#pods li').length === 3`)
        await focused('#send-100', 'a click does not move it')
        await learner.press('#lessons [data-key=back]')
        await page.locator('#lessons .tasks .done').nth(1).waitFor({ state: 'detached' })
        t.equal(await page.locator('#lessons .tasks .done').count(), 1, 'one step back is one step')
        const pods = await page.locator('#pods .name').allInnerTexts()
        await learner.press('#pods [data-action=terminate]')
        await page.waitForFunction(
          `!document.querySelector('#pods').textContent.includes('${pods[0]}')`,
        )
        await focused('#pods li', 'the row in the place of the one that went')
        await learner.until('cluster-ip', 2, nothing, learner.sendMany)
        await learner.press('#lessons [data-key=next]')
        await see('#lessons h3', '2. ')
        await focused('#lessons h3', 'the title of the next lesson')
        await learner.send()
        await learner.choose('modes', 'iptables')
        await focused('#modes [data-value=iptables]', 'a change of mode does not take it')
        await learner.send()
        await learner.press('#lessons [data-key=again]')
        await page.locator('#asked:empty').waitFor({ state: 'attached' })
        await see('#lessons h3', '2. ')
      })
    })
  },
)
