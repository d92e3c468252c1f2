/** The Debian package is installed into a root without our checkout, runs, and leaves nothing. */
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { inFreshRoot } from './fresh-root.js'
import { programSkip } from '../support/netns.js'

const root = fileURLToPath(new URL('../../..', import.meta.url)).replace(/\/$/, '')
const place = mkdtempSync(join(tmpdir(), 'deb-'))
t.teardown(() => rmSync(place, { recursive: true, force: true }))
const noDeb = programSkip('dpkg-deb')
const nodePackage = spawnSync('dpkg-query', ['--show', '--showformat=${Version}', 'nodejs'])
const hasNodePackage =
  spawnSync('dpkg', ['--compare-versions', String(nodePackage.stdout), 'ge', '20.18.1']).status ===
  0
const skip =
  noDeb ||
  (process.getuid?.() !== 0 && 'another root file system needs root') ||
  (!hasNodePackage && 'Node is not installed as a Debian package of version 20.18.1 or newer')

/** Xz needs 3 s to make the package as small as it can; its content is the same at once. */
const env = { ...process.env, DPKG_DEB_COMPRESSOR_LEVEL: '0' }

function make(folder: string): string {
  const { stdout, stderr, status } = spawnSync(join(root, 'scripts/deb'), [folder], {
    encoding: 'utf8',
    env,
  })
  if (status !== 0) throw new Error(stderr)
  return stdout.trim()
}

const script = `
dpkg --install /tmp/given/*.deb >/dev/null
cat >/etc/kube-proxy-ts/services/web.yaml <<'END'
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: default},
 spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{port: 80, protocol: TCP, targetPort: 8080}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
 metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}},
 ports: [{port: 8080, protocol: TCP}], endpoints: [{addresses: [10.244.1.11], conditions: {ready: true}}]}
END
# A process of userspace mode leaves its folder for the next one, and its socket when it is killed.
kube-proxy-ts --manifests=/etc/kube-proxy-ts/services --proxy-mode=userspace --proxy-mode-fallback=none --hostname-override=node-1 >/tmp/log 2>&1 &
daemon=$!
for try in $(seq 6000); do
    ls /run/kube-proxy-ts/*.sock >/dev/null 2>&1 && break
    kill -0 $daemon || { cat /tmp/log >&2; exit 1; }
    sleep 0.1
done
kube-proxy-ts cleanup >/dev/null 2>&1
echo "in use: $(ls /run/kube-proxy-ts | grep -c sock)"
kill -KILL $daemon
wait $daemon || true
echo "killed: $(ls /run/kube-proxy-ts | grep -c sock)"
kube-proxy-ts cleanup >/dev/null 2>&1
echo "run: $(ls -d /run/kube-proxy-ts 2>/dev/null)"
echo "rules: $(iptables-save | grep KUBE-)"
# The empty tables of iptables are not ours.
nft flush ruleset
nft list tables | while read -r table; do nft delete $table; done
# As the unit starts it, without systemd.
setpriv --reuid=kube-proxy --regid=kube-proxy --clear-groups --no-new-privs \\
    --inh-caps=-all,+net_admin,+net_raw --ambient-caps=-all,+net_admin,+net_raw --bounding-set=-all,+net_admin,+net_raw \\
    kube-proxy-ts --config=/etc/kube-proxy-ts/config.conf --hostname-override=node-1 >/tmp/log 2>&1 &
daemon=$!
for try in $(seq 6000); do
    nft list table ip kube-proxy 2>/dev/null | grep -q 10.244.1.11 && break
    kill -0 $daemon || { cat /tmp/log >&2; exit 1; }
    sleep 0.1
done
nft list table ip kube-proxy | grep -o -m1 10.244.1.11
kube-proxy-ts --version
kube-proxy-ts --help | grep ^Usage:
kube-proxy-ts completion bash | grep '^complete '
kube-proxy-ts explain web --nothing 2>&1 | grep -o 'kube-proxy.* lists the flags' || true
kill $daemon
wait $daemon || true
dpkg --purge kube-proxy-ts 2>&1 | grep -v -e Reading -e Removing -e Purging -e removing || true
echo "tables: $(nft list tables)"
echo "user: $(getent passwd kube-proxy)"
cd /tmp/changed
# Characters are those that overlayfs puts where something was removed.
find . -type f ! -path './var/lib/dpkg/*' ! -path './var/log/*' ! -path './var/cache/*' ! -name '*-' | sed 's/^/left: /'
`

const [first = '', second = ''] = noDeb ? [] : ['one', 'two'].map((name) => make(join(place, name)))

t.test('installed, run by its user, removed: nothing is left', { skip }, (t) => {
  const { stdout, stderr } = inFreshRoot(root, join(place, 'one'), script)
  t.match(stdout, /^10\.244\.1\.11\nkube-proxy-ts v\d/m, stderr)
  t.match(stdout, /^Usage: kube-proxy-ts /m, 'the command that the package has')
  t.match(stdout, /^complete .* kube-proxy-ts$/m)
  t.match(stdout, /kube-proxy-ts explain --help lists the flags/)
  t.match(stdout, /^tables: $/m, 'its rules went before it')
  t.match(stdout, /^user: $/m)
  t.match(stdout, /^in use: 1\nkilled: 1$/m, 'what a process uses stays')
  t.match(stdout, /^rules: $/m)
  t.match(stdout, /^run: $/m, 'the folder of userspace mode went, too')
  const left = [...stdout.matchAll(/^left: \.(.*)$/gm)].map(([, path]) => path)
  // The tools for users rewrite these files with the same content.
  const files = left.filter(
    (path = '') => !/^\/etc\/(passwd|group|g?shadow|subuid|subgid|\.pwd\.lock)$/.test(path),
  )
  t.same(files, [], stdout)
  t.end()
})

t.test('two packages of the same files are equal to the byte', { skip: noDeb }, (t) => {
  t.ok(readFileSync(first).equals(readFileSync(second)))
  t.end()
})

t.test('the script leaves nothing if it is stopped', { skip: noDeb }, async (t) => {
  const temporary = join(place, 'temporary')
  mkdirSync(temporary)
  const child = spawn(join(root, 'scripts/deb'), [join(place, 'three')], {
    env: { ...env, TMPDIR: temporary },
    stdio: 'ignore',
  })
  while (readdirSync(temporary).length === 0 && child.exitCode === null) await delay(10)
  child.kill('SIGTERM')
  await once(child, 'exit')
  t.same(readdirSync(temporary), [])
})

t.test('apt can say how much room it takes', { skip: noDeb }, (t) => {
  const { stdout } = spawnSync('dpkg-deb', ['--field', first, 'Installed-Size'])
  const [kib, mib] = [Number(String(stdout)), 1024]
  t.ok(kib > 5 * mib && kib < 50 * mib, `${kib} KiB`)
  t.end()
})

t.test('the unit and the configuration name only files of the package', { skip: noDeb }, (t) => {
  const { stdout } = spawnSync('dpkg-deb', ['--contents', first], { encoding: 'utf8' })
  const paths = stdout.split('\n').map((line) => line.split(' ').at(-1)?.replace(/^\./, ''))
  const file = (path: string) =>
    spawnSync('sh', ['-c', `dpkg-deb --fsys-tarfile ${first} | tar -xO .${path}`], {
      encoding: 'utf8',
    }).stdout
  const unit = file('/usr/lib/systemd/system/kube-proxy-ts.service')
  const named = unit.match(/\/(usr\/lib\/kube-proxy-ts|etc\/kube-proxy-ts)\/[\w./-]*\w/g) ?? []
  t.ok(named.length >= 3)
  for (const path of named) t.ok(paths.includes(path) || paths.includes(`${path}/`), path)
  t.notMatch(unit, /\/opt\/|\/etc\/kube-proxy\//)
  const manual = file('/usr/share/man/man8/kube-proxy-ts.8.gz | gunzip').replaceAll('\\', '')
  t.match(manual, /^\.B kube-proxy-ts explain$/m)
  t.notMatch(manual, /kube-proxy( |$)/m, 'a command that the package does not have')
  t.match(file('/etc/kube-proxy-ts/config.conf'), 'manifests: /etc/kube-proxy-ts/services')
  t.end()
})
