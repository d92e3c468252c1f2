/** What runs on other systems. The process sees another platform, and cannot load koffi. */
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { cpSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t, { type Test } from 'tap'

const root = fileURLToPath(new URL('../../..', import.meta.url))
const refuse = "throw new Error('refused in this test: ' + import.meta.url)"
/**
 * A copy of the program, in which modules that only Linux can use refuse to load. Hooks of Node for
 * imports would do without a copy, but they double what a command costs.
 */
const copy = t.testdir({
  'package.json': readFileSync(join(root, 'package.json')),
  build: { site: t.fixture('symlink', join(root, 'build/site')) },
  node_modules: { koffi: { 'package.json': '{ "exports": "./index.mjs" }', 'index.mjs': refuse } },
})
cpSync(join(root, 'build/lib'), join(copy, 'build/lib'), {
  recursive: true,
  filter: (file) => !/\.(map|d\.ts)$/.test(file),
})
for (const name of ['netlink/socket.js', 'bpf/system-calls.js']) {
  writeFileSync(join(copy, 'build/lib/kernel', name), refuse)
}
const command = join(copy, 'build/lib/cli/main.js')
const services = 'examples/services'
/** Without programs, `cleanup` cannot change this machine. */
const env = { PATH: '' }

/** Code that sets another platform; `files` lie beside it. */
function preload(t: Test, platform: string, files: Record<string, string> = {}): string {
  const main = `import os from 'node:os'
    import { syncBuiltinESMExports } from 'node:module'
    Object.defineProperty(process, 'platform', { value: '${platform}' })
    os.networkInterfaces = () => { throw new Error('no interfaces in this test') }
    syncBuiltinESMExports()`
  return join(t.testdir({ ...files, 'main.mjs': main }), 'main.mjs')
}

function run(file: string, ...args: string[]): Promise<{ code: number; text: string }> {
  return new Promise((resolve) => {
    execFile(
      process.execPath,
      ['--import', file, command, ...args],
      { env },
      (error, stdout, stderr) => {
        const code = typeof error?.code === 'number' ? error.code : error ? -1 : 0
        resolve({ code, text: stdout + stderr })
      },
    )
  })
}

for (const platform of ['win32', 'darwin']) {
  t.test(`help, render, explain and cleanup run on ${platform}`, async (t) => {
    const file = preload(t, platform)
    const [help, render, explain] = await Promise.all([
      run(file, '--help'),
      run(file, 'render', '--proxy-mode', 'nftables', '--manifests', services),
      run(file, 'explain', 'web', '--proxy-mode', 'ipvs', '--manifests', services),
    ])
    t.match(help, { code: 0, text: /--windows-interface/ })
    t.match(render, { code: 0, text: /table ip kube-proxy/ })
    t.match(explain, { code: 0, text: /used .*10\.244/ })
    const runs = platform === 'win32'
    const usual = runs ? /^listen TCP 10\.96\.0\.10:80/m : /KUBE-SERVICES/
    t.match((await run(file, 'render', '--manifests', services)).text, usual, 'without a mode')
    const named = ['--proxy-mode', 'userspace', '--manifests', services]
    const own = runs ? usual : /KUBE-PORTALS-CONTAINER/
    t.match((await run(file, 'render', ...named)).text, own, 'userspace')
    const mode = runs ? /in winuserspace mode/ : /in iptables mode/
    t.match((await run(file, 'explain', 'web', '--manifests', services)).text, mode)
    const check = await run(file, 'check')
    t.equal(check.code, runs ? 0 : 1)
    t.match(
      check.text,
      new RegExp(`nftables +does not run\\n +MISSING .*Linux +this is ${platform}`),
    )
    t.equal(/winuserspace runs/.test(check.text), runs)
    const cleanup = await run(file, 'cleanup')
    t.equal(cleanup.code, 0, cleanup.text)
    t.equal(/Cleaned up/.test(cleanup.text), runs)
  })
}

t.test('a dry run is refused where it would change the node', async (t) => {
  const head = 'apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n'
  // Without the refusal these commands find nothing that they could change.
  const file = preload(t, 'darwin', {
    'dry.yaml': `${head}dryRun: true\n`,
    'both.yaml': `${head}dryRun: true\ninitOnly: true\n`,
  })
  const cases: readonly (readonly [args: readonly string[], says: RegExp])[] = [
    [
      ['--dry-run', '--cleanup'],
      /^kube-proxy: --dry-run cannot be combined with --cleanup; leave one of them out\n$/,
    ],
    [['--init-only', '--dry-run'], /: --dry-run cannot be combined with --init-only; leave/],
    [
      ['--cleanup', '--config', `${t.testdirName}/dry.yaml`],
      /dry\.yaml:3: dryRun cannot .* --cleanup;/,
    ],
    [
      ['--config', `${t.testdirName}/both.yaml`],
      /both\.yaml:3: dryRun .* \S+both\.yaml:4: initOnly;/,
    ],
    [['cleanup', '--dry-run'], /--dry-run is for running the proxy, not for cleanup\n$/],
    [['--dry-run', 'cleanup'], /too many arguments/],
  ]
  for (const [args, says] of cases) t.match(await run(file, ...args), { code: 2, text: says })
})

t.test('the proxy starts on Windows where koffi does not load', async (t) => {
  const flags = ['--dry-run', '--manifests', services, '--hostname-override', 'node-1']
  const proxy = spawn(process.execPath, ['--import', preload(t, 'win32'), command, ...flags])
  const ended = once(proxy, 'close')
  let said = ''
  const planned = new Promise<void>((resolve) => {
    const hear = (text: Buffer) => {
      said += String(text)
      if (said.includes('SyncProxyRules complete')) resolve()
    }
    proxy.stdout.on('data', hear)
    proxy.stderr.on('data', hear)
  })
  await Promise.race([planned, ended])
  proxy.kill('SIGTERM')
  t.same(await ended, [0, null])
  t.match(said, /listen TCP 10\.96\.0\.10:80 for default\/web:http/)
})

t.test('the playground serves a simulated cluster on darwin, without koffi', async (t) => {
  const whole = join(copy, 'build/lib/main.js')
  const args = ['--import', preload(t, 'darwin'), whole, 'playground', '--port', '0']
  const played = spawn(process.execPath, args, { env })
  const ended = once(played, 'close')
  let said = ''
  const opened = new Promise<void>((resolve) => {
    const hear = (text: Buffer) => {
      said += String(text)
      if (said.includes('to try it')) resolve()
    }
    played.stdout.on('data', hear)
    played.stderr.on('data', hear)
  })
  await Promise.race([opened, ended])
  const [, url = ''] = /Open (\S+)/.exec(said) ?? []
  t.match(said, /^The cluster is simulated in the browser: .* this is darwin/)
  if (url !== '') t.match(await (await fetch(url)).text(), /site\.js/)
  played.kill('SIGTERM')
  t.same(await ended, [0, null])
})
