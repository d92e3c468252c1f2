import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { get } from 'node:http'
import { promisify } from 'node:util'
import t from 'tap'
import { becomeWide, picture, skip, withOpenedPage, type OpenedPage } from './opened-page.js'
import { until } from '../../support/until.js'

const run = promisify(execFile)
const kubectlPath = '/usr/bin/kubectl'

/** The status of a request with this Host header. */
function statusFor(url: string, host: string): Promise<number> {
  return new Promise((resolve, reject) => {
    get(url, { headers: { host } }, (response) => {
      response.resume()
      resolve(response.statusCode ?? 0)
    }).on('error', reject)
  })
}

/** Waits until the editor has a text. The page's policy forbids conditions that run inside it. */
async function holds({ page }: OpenedPage, text: string): Promise<void> {
  const editor = page.locator('#yaml')
  await until(`${text} in the editor`, async () => (await editor.inputValue()).includes(text))
}

/** Reads the chosen object again. */
async function readAgain(opened: OpenedPage): Promise<void> {
  await opened.page.locator('#yaml').fill('')
  await opened.page.getByRole('button', { name: 'read again' }).click()
  await holds(opened, 'kind: ')
}

/** Runs the command that the page shows, as a user would in another terminal. */
async function runShownLine({ page }: OpenedPage): Promise<string> {
  const lines = await page.locator('#kubectl').innerText()
  const { stdout } = await run('bash', ['-c', lines])
  return stdout
}

t.test('every object can be edited as YAML through the API server', { skip }, async (t) => {
  await withOpenedPage(['nftables'], async (opened) => {
    const { page, see, press, complaints, answersLike, url } = opened
    const yaml = page.locator('#yaml')
    await page.locator('#pods .state.ready').nth(2).waitFor()
    await page.locator('#object').selectOption({ label: 'Service default/web' })
    await holds(opened, 'name: web')
    const text = await yaml.inputValue()
    // A late answer does not overwrite text that was typed meanwhile.
    let answer = () => {}
    const late = new Promise<void>((resolve) => (answer = resolve))
    await page.route('**/object?*', (route) => void late.then(() => route.continue()), { times: 1 })
    await page.getByRole('button', { name: 'read again' }).click()
    await yaml.fill(text.replace('sessionAffinity: None', 'sessionAffinity: ClientIP'))
    const answered = page.waitForResponse('**/object?*')
    answer()
    await (await answered).finished()
    await press('apply')
    await see('#yaml-said', 'applied')
    await page.locator('#affinity:checked').waitFor()
    t.ok(await answersLike((names) => names.length === 1), 'and packets do it')

    const wrong = async (change: (yaml: string) => string, answer: RegExp) => {
      await readAgain(opened)
      await yaml.fill(change(await yaml.inputValue()))
      await press('apply')
      await see('#error', answer)
    }
    await wrong(
      (old) => old.replace(/port: 80\n/, 'port: 80000\n'),
      /Error from server: Service "web" is invalid: spec\.ports\[0\]\.port.*between 1 and 65535/,
    )
    await wrong((old) => `${old}wrong: [`, /read the YAML/)
    await wrong(
      (old) => old.replace('spec:', 'spec:\n  sesionAffinity: None'),
      /unknown field "spec\.sesionAffinity"/,
    )
    await wrong(
      (old) => old.replace(/resourceVersion: .*/, 'resourceVersion: "1"'),
      /the object has been modified/,
    )
    await wrong(
      (old) => old.replace('kind: Service', 'kind: Servant'),
      /no matches for kind "Servant"/,
    )

    const refuse = { status: 409, body: 'not now' }
    await page.route('**/command', (route) => route.fulfill(refuse), { times: 1 })
    const internal = page.getByLabel('internal policy Local')
    await internal.click()
    await see('#error', 'not now')
    t.equal(await internal.isChecked(), false, 'what was refused is not shown as done')

    const list = page.locator('#object')
    const pods = list.locator('option', { hasText: 'Pod default/' })
    const label = await pods.first().innerText()
    await list.selectOption({ label })
    await holds(opened, 'kind: Pod')
    const name = label.replace('Pod default/', '')
    await page.getByRole('button', { name: `terminate ${name}`, exact: true }).click()
    await list.locator('option', { hasText: name }).waitFor({ state: 'detached' })
    t.equal(await list.inputValue(), '', 'an object that is gone is no other one of the list')
    await page.getByRole('button', { name: 'read again' }).click()
    await see('#yaml-said', 'it cannot be read; is it gone?')
    await page.locator('#pods .state.ready').nth(2).waitFor()
    await list.selectOption({ label: 'Service default/echo' })
    await holds(opened, 'name: echo')

    if (existsSync(kubectlPath)) {
      await page.getByLabel('session affinity').click()
      await see('#kubectl', 'patch service web')
      t.match(await runShownLine(opened), /service\/web patched \(no change\)/)
      await press('One replica fewer')
      await see('#kubectl', 'scale')
      t.match(await runShownLine(opened), /deployment\.apps\/web scaled/)
      await page.locator('#pods [data-action=unready]').first().click()
      await see('#kubectl', 'annotate')
      t.match(await runShownLine(opened), /pod\/web-\S+ annotated/)
      await page.locator('#object').selectOption({ label: 'Service default/web' })
      await readAgain(opened)
      await press('apply')
      await see('#kubectl', 'replace -f -')
      t.match(await runShownLine(opened), /service\/web replaced/)
      const shown = await page.locator('#yaml-kubectl').innerText()
      const { stdout } = await run('bash', ['-c', `KUBECONFIG=${opened.kubeconfig} ${shown}`])
      t.match(stdout, /kind: Service[^]*name: web/)
      const change = `create service clusterip other --tcp=80:8080`
      await run('kubectl', ['--kubeconfig', opened.kubeconfig, ...change.split(' ')])
      await see('#services', 'other')
    } else t.comment(`kubectl lines are not run: there is no ${kubectlPath}`)

    const object = new URLSearchParams({
      apiVersion: 'v1',
      kind: 'Service',
      namespace: 'default',
      name: 'none',
    })
    t.equal((await fetch(`${url}/object?${object.toString()}`)).status, 404)
    t.same(
      complaints.filter((each) => !/status of 40[49]/.test(each)),
      [],
      'no error in the console',
    )
  })
})

t.test('other sites are refused, and hostile names stay text', { skip }, async (t) => {
  await withOpenedPage(['nftables'], async (opened) => {
    const { page, url, see, complaints } = opened
    t.equal(await statusFor(url, 'evil.example'), 403, 'a foreign Host header is refused')
    const json = { 'content-type': 'application/json' }
    const post = (body: object, headers: Record<string, string> = json) =>
      fetch(`${url}/command`, { method: 'POST', headers, body: JSON.stringify(body) })
    t.equal((await post({ do: 'replicas', count: 1e9 })).status, 400, 'out of range')
    t.equal((await post({ do: 'pod', pod: 'x', action: 'explode' })).status, 400, 'unknown action')
    for (const [length, answer] of [
      [125_000, 'read the YAML: there is no object in it'],
      [135_000, 'the command is too long'],
    ] as const) {
      const long = await post({ do: 'apply', yaml: `#${'x'.repeat(length)}` })
      t.equal(await long.text(), answer, `${length} characters of YAML`)
    }
    t.equal((await post({ do: 'clear' }, { ...json, origin: 'http://evil.example' })).status, 403)
    t.equal((await post({ do: 'clear' }, { 'content-type': 'text/plain' })).status, 415)
    const policy = (await fetch(url)).headers.get('content-security-policy') ?? ''
    t.match(policy, /default-src 'none'/)
    t.notMatch(policy, /unsafe/, 'nothing inline runs')
    const wanted = new Set<string>()
    page.on('request', (request) => wanted.add(new URL(request.url()).origin))
    await page.reload()
    await see('#status', 'running')
    t.same([...wanted], [url], 'nothing comes from elsewhere')

    const hostile = '<img src=x onerror=document.title="owned">'
    await post({
      do: 'apply',
      yaml: JSON.stringify({
        apiVersion: 'v1',
        kind: 'Service',
        metadata: { name: 'web', namespace: 'default' },
        spec: { ports: [{ port: hostile }] },
      }),
    })
    await post({
      do: 'apply',
      yaml: JSON.stringify({
        apiVersion: 'v1',
        kind: 'Service',
        metadata: { name: 'odd', namespace: 'default', annotations: { note: hostile }, labels: {} },
        spec: { ports: [{ port: 80 }], selector: { app: 'web' } },
      }),
    })
    const refusal = await post({ do: 'select', service: hostile })
    t.equal(refusal.status, 409)
    await page.evaluate(
      `document.getElementById('filter').hidden = false;
       fetch('/command', { method: 'POST', headers: { 'content-type': 'application/json' }, body: '{}' })`,
    )
    await see('#services', 'odd')
    await page.locator('#object').selectOption({ label: 'Service default/odd' })
    await holds(opened, 'onerror')
    // The page shows a refusal of the API with the hostile name.
    await page
      .locator('#yaml')
      .fill(`{"apiVersion": "v1", "kind": ${JSON.stringify(hostile)}, "metadata": {"name": "x"}}`)
    await page.getByRole('button', { name: 'apply', exact: true }).click()
    await see('#error', '<img src=x onerror=')
    t.equal(await page.locator('img').count(), 0, 'no element came of it')
    t.equal(await page.title(), 'kube-proxy playground')
    t.same(
      complaints.filter((each) => !/status of 40\d/.test(each)),
      [],
    )
  })
})

t.test('the page works by keyboard, at both widths, and with 200 Services', { skip }, async (t) => {
  await withOpenedPage(['iptables', 'userspace'], async (opened) => {
    const { page, see, url } = opened
    await page.locator('#pods .state.ready').nth(2).waitFor()

    // Every control can be reached, and shows its focus.
    const all = await page.evaluate<number>(`(() => {
      const shown = [...document.querySelectorAll('button, input, select, textarea, summary, [tabindex="0"]')]
        .filter((each) => each.checkVisibility() && !each.disabled)
      shown.forEach((each, index) => (each.dataset.nth = String(index)))
      return shown.length
    })()`)
    t.ok(all > 40, `there are ${all} controls`)
    const reached = new Set<string>()
    const unseen: string[] = []
    await page.locator('h1').click()
    for (let presses = 0; presses < all + 10; presses++) {
      await page.keyboard.press('Tab')
      const [nth, name, outline] = await page.evaluate<[string, string, string]>(`(() => {
        const own = document.activeElement
        return [own?.dataset?.nth ?? '', own?.id || own?.textContent || '', getComputedStyle(own).outlineStyle]
      })()`)
      if (nth === '') continue
      reached.add(nth)
      if (outline === 'none') unseen.push(name)
    }
    t.equal(reached.size, all, 'Tab reaches every one of them')
    t.same(unseen, [], 'and the focus is always to be seen')

    // A whole lesson and a change of the mode work without a mouse.
    const focus = (selector: string) => page.locator(selector).first().focus()
    await focus('#modes [data-value=userspace]')
    await page.keyboard.press('Enter')
    await see('#status', 'running in userspace mode')
    await focus('#lessons [data-key=cluster-ip]')
    await page.keyboard.press('Enter')
    await see('#lessons h3', '1. What a ClusterIP is')
    await focus('#send-100')
    await page.keyboard.press('Space')
    await page.locator('#lessons .tasks li.done').first().waitFor()
    const kept = () => page.evaluate('document.activeElement.id')
    t.equal(await kept(), 'send-100', 'the focus stays where it was while the page changes')
    await focus('#pods [data-action=terminate]')
    const terminating = page.locator('#pods .state.terminating')
    // On a busy machine the state may have passed when the key has been pressed.
    await Promise.all([terminating.waitFor(), page.keyboard.press('Enter')])
    await terminating.waitFor({ state: 'detached' })
    await page.locator('#pods .state.ready').nth(2).waitFor()
    await focus('#send-100')
    const isDone = async () => {
      await page.keyboard.press('Enter')
      return (await page.locator('#lessons .moral').count()) > 0
    }
    await until('the end of the lesson', isDone, 300)
    await see('#lessons .moral', 'One address')
    t.equal(await page.locator('#task').isVisible(), false, 'the lesson is beside the controls')
    await page.setViewportSize({ width: 390, height: 844 })
    await see('#task', 'What a ClusterIP is: One address')
    t.ok(await page.locator('#task').isVisible(), 'on a narrow screen its task is, too')
    await page.setViewportSize({ width: 1280, height: 900 })
    await picture(page, 'lesson')

    // What moves may pass over a label.
    await page.locator('#packets .packet').waitFor({ state: 'detached' })
    const overflow = async () =>
      page.evaluate('document.documentElement.scrollWidth - document.documentElement.clientWidth')
    for (const width of [1280, 768, 390]) {
      await becomeWide(page, width, 844)
      t.equal(await overflow(), 0, `nothing sticks out at ${width} px`)
      const clashes = await page.evaluate(overlaps)
      t.same(clashes, [], `no label of the picture lies over another at ${width} px`)
    }

    // Text has enough contrast in both colours and in the colour of every mode.
    for (const colorScheme of ['light', 'dark'] as const) {
      await page.emulateMedia({ colorScheme })
      for (const mode of ['userspace', 'iptables', 'ipvs', 'nftables']) {
        const faint = await page.evaluate(`(${faintTexts})('${mode}')`)
        t.same(faint, [], `contrast of 4.5 and more, ${colorScheme}, ${mode}`)
      }
    }
    await page.emulateMedia({ colorScheme: 'light' })

    // The cluster gets as many Services as a small one has.
    await page.setViewportSize({ width: 1280, height: 900 })
    const service = (index: number) =>
      `{apiVersion: v1, kind: Service, metadata: {name: many-${index}}, spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}}`
    const yaml = Array.from({ length: 200 }, (_, index) => service(index)).join('\n---\n')
    const body = JSON.stringify({ do: 'apply', yaml })
    const headers = { 'content-type': 'application/json' }
    t.equal((await fetch(`${url}/command`, { method: 'POST', headers, body })).status, 200)
    await see('#services-count', '202')
    await page.getByLabel('Filter Services').fill('many-199')
    t.equal(await page.locator('#services li').count(), 1)
    await page.locator('#services button').click()
    await see('#picture', 'Service many-199')
    await see('#ways', 'web-')
    await page.locator('#send-1').click()
    await see('#log tr', 'web-')
  })
})

/** Texts of the picture whose boxes lie over each other; runs in the browser. */
const overlaps = `(() => {
  const texts = [...document.querySelectorAll('#picture text')].filter((each) => each.textContent !== '')
  const boxes = texts.map((each) => ({ words: each.textContent, box: each.getBoundingClientRect() }))
  return boxes.flatMap(({ words, box }, index) =>
    boxes.slice(index + 1).filter((other) =>
      box.left < other.box.right - 1 && other.box.left < box.right - 1 &&
      box.top < other.box.bottom - 3 && other.box.top < box.bottom - 3,
    ).map((other) => words + ' / ' + other.words),
  )
})()`

/** Colours of text and of its background; runs in the browser. */
const faintTexts = `(mode) => {
  document.body.dataset.mode = mode
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number)
  const light = (colour) => {
    const [r, g, b] = channels(colour).map((each) => {
      const part = each / 255
      return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4
    })
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }
  const contrast = (one, other) => {
    const [high, low] = [light(one), light(other)].sort((a, b) => b - a)
    return (high + 0.05) / (low + 0.05)
  }
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor
      if (channels(colour)[3] !== 0) return colour
    }
    return getComputedStyle(document.body).backgroundColor
  }
  const hasText = (element) => [...element.childNodes].some((each) => each.nodeType === 3 && each.data.trim() !== '')
  const faint = [...document.querySelectorAll('body *:not(svg *):not(option)')]
    .filter((each) => each.checkVisibility() && hasText(each) && !each.disabled)
    .filter((each) => contrast(getComputedStyle(each).color, behind(each)) < 4.5)
    .map((each) => each.tagName + ' ' + each.className + ' ' + each.textContent.slice(0, 30))
  const probe = document.createElement('i')
  document.body.append(probe)
  const token = (name) => {
    probe.style.color = 'var(--' + name + ')'
    return getComputedStyle(probe).color
  }
  const drawn = [['text', 'card'], ['text', 'node'], ['soft', 'node'], ['soft', 'kernel'], ['soft', 'card'],
    ['on-accent', 'accent'], ['bad', 'card'], ['good', 'card'], ['soft', 'added'], ['soft', 'removed']]
  const pale = drawn.filter(([over, under]) => contrast(token(over), token(under)) < 4.5).map((pair) => pair.join(' on '))
  probe.remove()
  return [...faint, ...pale]
}`
