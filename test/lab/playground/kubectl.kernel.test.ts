import { once } from 'node:events'
import { spawn } from 'node:child_process'
import t from 'tap'
import { runCommand } from '../../support/run-command.js'
import { namespaceNames } from '../../../lib/lab/world/namespaces.js'
import { kubectlMinor, noKubectl } from '../apiserver/support/kubectl.js'
import { withPlayer } from './player.js'

const skip = process.getuid?.() === 0 ? noKubectl : 'network namespaces need root'

t.test('what tutorials do with kubectl works in the playground', { skip }, async (t) => {
  await withPlayer('kubectl', ['iptables'], async (player) => {
    const { cluster } = player
    const kubectl = async (args: string) => {
      const all = [`--kubeconfig=${cluster.kubeconfig}`, ...args.split(' ')]
      const { code, stdout, stderr } = await runCommand('kubectl', all)
      return { code, text: stdout + stderr }
    }
    const ok = async (args: string) => {
      const { code, text } = await kubectl(args)
      t.equal(code, 0, `kubectl ${args}: ${text}`)
      return text
    }
    const until = async (args: string, wanted: RegExp) => {
      for (let tries = 0; tries < 300; tries++) {
        const { text } = await kubectl(args)
        if (wanted.test(text)) return text
      }
      throw new Error(`kubectl ${args} never said ${wanted}: ${(await kubectl(args)).text}`)
    }
    t.match(await ok('get nodes'), /node-1 +Ready[^]*node-2 +Ready/)
    const described = await ok('describe node node-1')
    t.match(described, /cpu: +2\n[^]*memory: +4Gi\n/)
    t.match(described, /cpu +0 \(0%\)[^]*memory +0 \(0%\)/, 'a share of something')
    t.notMatch(described, /Jan 0001|Failed to get/)
    t.match(
      await ok('get service kubernetes'),
      /kubernetes +ClusterIP +10\.96\.0\.1 +<none> +443\/TCP/,
    )
    const inPod = ['netns', 'exec', namespaceNames('kubectl')['client-pod'], process.execPath, '-e']
    const ask = `fetch('http://10.96.0.1:443/version').then(({ status }) => console.log(status))`
    t.match(
      (await runCommand('ip', [...inPod, ask])).stdout,
      /^\d{3}$/m,
      'it answers, if only to refuse',
    )
    const { services, objects } = player.playground.view()
    t.notOk(services.get('default/kubernetes'), 'the page leaves it out')
    t.notOk(objects.some(({ name }) => name === 'kubernetes'))
    await ok('create deployment hello --image=nginx --port=80')
    await ok('expose deployment hello --port=80')
    await ok('rollout status deployment/hello --timeout=300s')
    await player.do({ do: 'select', service: 'default/hello' })
    await player.see('its pod in the way', ({ path }) =>
      path.ways.some(({ pod }) => /^hello-/.test(pod)),
    )
    const [entry] = await player.send()
    t.match(entry, { isAnswered: true, answer: /^hello-/ }, 'the pod answers on the port it names')
    const logged = await until(`logs ${entry?.answer ?? ''}`, /answered/)
    t.match(
      logged,
      /listens on 80\n\S+ answered 10\.244\.1\.10:\d+ at 10\.244\.\d+\.\d+:80\/TCP\n$/,
      'the request, and none of those with which the page looks whether the pod is there',
    )
    const follow = [
      `--kubeconfig=${cluster.kubeconfig}`,
      'logs',
      '-f',
      '--tail=0',
      entry?.answer ?? '',
    ]
    const following = spawn('kubectl', follow)
    const gone = once(following, 'exit')
    let printed = ''
    following.stdout.on('data', (text: Buffer) => (printed += text.toString()))
    while (printed === '') await player.send()
    t.match(printed, /^\S+ answered 10\.244\.1\.10:\d+ at /, 'lines that came later')
    const shell = await kubectl(`exec ${entry?.answer ?? ''} -- sh`)
    t.not(shell.code, 0)
    t.match(shell.text, /there is no container, no shell and no image here/)
    if (kubectlMinor >= 25) {
      const debug = await kubectl(`debug ${entry?.answer ?? ''} --image=busybox`)
      t.match(debug.text, /there is no container, no shell and no image here/)
    }
    const ip = await ok('get service hello -o jsonpath={.spec.clusterIP}')
    const fetched = `fetch('http://${ip}/').then((got) => got.text()).then(console.log)`
    t.match(
      (await runCommand('ip', [...inPod, fetched])).stdout,
      /^hello-\S+ answers 10\.244\.1\.10$/m,
      'as curl in a pod would see it',
    )
    await until(
      'logs deployment/hello',
      /answered 10\.244\.1\.10:\d+ at \S+:80\/TCP "GET \/ HTTP\/1\.1"\n/,
    )

    t.match(await ok('get replicasets'), /hello-\w+ +1 +1 +1 /)
    await ok('set image deployment/hello nginx=nginx:2')
    await ok('rollout status deployment/hello --timeout=300s')
    t.same(await gone, [0, null], 'who follows a pod is told that it has ended')
    t.match(await ok('rollout history deployment/hello'), /\n1 [^]*\n2 /)
    await ok('rollout undo deployment/hello')
    await ok('rollout status deployment/hello --timeout=300s')
    const image = 'jsonpath={.spec.template.spec.containers[0].image}'
    t.equal(await ok(`get deployment hello -o ${image}`), 'nginx')
    t.match(await ok('rollout history deployment/hello'), /\n2 [^]*\n3 /)

    await ok('scale deployment hello --replicas=12')
    await until('get deployment hello', /hello +12\/12 /)
    const names = new Set<string>()
    while (names.size < 12) for (const { answer } of await player.send(100)) names.add(answer)
    t.equal(names.size, 12, 'more pods than places, and each answers')
    await ok('scale deployment hello --replicas=30')
    await until('get events', /NoRoom +pod\/hello-\S+ +node-\d has room for \d+ pods/)
  })
})
