import type { OpenedSite } from './opened-site.js'
import { until } from '../../support/until.js'

/** A learner without a mouse. */
export class Keyboard {
  readonly #opened: OpenedSite

  constructor(opened: OpenedSite) {
    this.#opened = opened
  }

  async press(selector: string, key = 'Enter'): Promise<void> {
    const { page } = this.#opened
    await page.locator(selector).first().focus()
    await page.keyboard.press(key)
  }

  async write(selector: string, text: string): Promise<void> {
    const { page } = this.#opened
    await page.locator(selector).focus()
    await page.keyboard.press('Control+A')
    await page.keyboard.insertText(text)
  }

  /** Reads an object, changes its YAML and applies it. */
  async edit(label: string, change: (yaml: string) => string): Promise<void> {
    const { page, see } = this.#opened
    const [kind = '', name = ''] = label.split(' default/')
    await this.#choose(label)
    await see('#yaml-kubectl', `get ${kind.toLowerCase()} ${name} -o yaml`)
    await this.press('#yaml-read')
    await page.waitForFunction(
      `document.querySelector('#yaml').value.includes('kind: ${kind}\\n') &&
       document.querySelector('#yaml').value.includes('\\n  name: ${name}\\n')`,
    )
    const old = await page.locator('#yaml').inputValue()
    const fresh = change(old)
    if (fresh === old) throw new Error(`there is nothing to change in ${label}: ${old}`)
    await this.write('#yaml', fresh)
    await this.press('#yaml-apply')
    await see('#yaml-said', 'applied')
  }

  /** A browser takes a letter for the first of a new name if it comes more than a second later. */
  async #choose(label: string): Promise<void> {
    const { page } = this.#opened
    const box = page.locator('#object')
    const isChosen = async () => {
      await box.focus()
      await page.keyboard.type(label)
      return (await box.locator('option:checked').innerText()) === label
    }
    await until(`the choice of ${label}`, isChosen, 1_500)
  }

  /** Presses `check` until its report matches, because pods need some time. */
  async check(wanted: RegExp): Promise<string> {
    const { page } = this.#opened
    const report = page.locator('#exercises [data-key=report]')
    await page.waitForFunction(
      `!document.querySelector('#exercises [data-key=report]')?.textContent.startsWith('Setting')`,
    )
    let text = ''
    const isSaid = async () => {
      await this.press('#exercises [data-key=check]')
      await page.waitForTimeout(50)
      text = await report.innerText()
      return wanted.test(text)
    }
    await until(() => `a check that says ${wanted}: ${text}`, isSaid, 0)
    return text
  }
}
