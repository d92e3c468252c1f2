import { spawnSync } from 'node:child_process'
import fc from 'fast-check'
import t from 'tap'
import { parse } from 'yaml'
import { printed, printedOfMany } from '../../lib/cli/shared-options.js'
import { explainPacket } from '../../lib/inspect/explain/explain.js'
import { understand } from '../../lib/inspect/explain/question.js'
import { explanationText } from '../../lib/inspect/explain/text.js'
import { modeLoaders, modeNames } from '../../lib/modes/registry.js'
import type { ModeName } from '../../lib/config/config.js'
import { ApiEvents } from '../../lib/observe/events.js'
import { createLogger } from '../../lib/observe/logger.js'
import { formatLine } from '../../lib/observe/log-text.js'
import { Metrics } from '../../lib/observe/metrics.js'
import { parseEndpointSlice } from '../../lib/state/parse-endpoint-slice.js'
import { parseService } from '../../lib/state/parse-service.js'
import { Tracker } from '../../lib/state/tracker.js'
import { rawService, rawSlice, plainNode } from '../state/objects.js'
import { anyText, textsOf } from '../support/corpus.js'
import { service, states, testConfig, type ServiceSpec } from '../support/states.js'

/**
 * A user who may create a Service chooses texts that end up in rules, logs and pages. Parsers
 * refuse most hostile texts. These tests give them to every renderer without the parsers. Its
 * output for a hostile text must have the same shape as for a harmless one.
 */

const nasty = [
  '"',
  "'",
  '`id`',
  '$(reboot)',
  '; flush ruleset',
  '\n-A INPUT -j ACCEPT',
  '\nCOMMIT\n*nat\n',
  '\r\n',
  '\0',
  '\\',
  '\\"',
  '" } ; add rule ip kube-proxy services accept ; #',
  '{{',
  '}',
  '\u001b[2J\u001b]0;owned\u0007',
  '\u202e',
  '\u2028',
  '</script><script>alert(1)</script>',
  '-j DROP',
  '--comment',
  '%s%n',
  '../../etc/passwd',
  '__proto__',
  'x'.repeat(300),
  '🚀',
  '\ud800',
  ...textsOf('hostile-text'),
]
const hostile = fc.oneof(
  fc.constantFrom(...nasty),
  fc
    .array(fc.oneof(fc.constantFrom(...nasty), anyText()), { maxLength: 4 })
    .map((parts) => parts.join('')),
)

const spec = (texts: {
  namespace: string
  name: string
  portName: string
  option: string
}): ServiceSpec =>
  service({
    namespace: texts.namespace,
    name: texts.name,
    portName: texts.portName,
    options: { scheduler: texts.option, 'kube-proxy-ts/ipvs-scheduler': texts.option },
    nodePort: 30_080,
    externalIps: ['198.51.100.1'],
    loadBalancerIps: ['203.0.113.1'],
    sourceRanges: ['192.0.2.0/24'],
    affinitySeconds: 60,
    externalPolicyLocal: true,
    endpoints: [{ ip: '10.180.0.1' }, { ip: '10.99.0.1', local: false }],
  })
const harmless = spec({ namespace: 'shop', name: 'web', portName: 'http', option: '' })
const texts = fc.record({ namespace: hostile, name: hostile, portName: hostile, option: hostile })

/** The rules without parts that may differ: hashes, names made of hashes, and quoted comments. */
const shapeOf: Readonly<Record<ModeName, (rendered: string) => string>> = {
  iptables: restoreShape,
  ipvs: restoreShape,
  userspace: restoreShape,
  winuserspace: restoreShape,
  nftables: nftablesShape,
  ebpf: (rendered) => nftablesShape(rendered.replace(/^sockets .*$/gm, 'sockets')),
}

function nftablesShape(rendered: string): string {
  return rendered
    .replace(/"[^"\n]*"/g, '"…"')
    .replace(/\b(service|external|local|firewall|endpoint|affinity)-[A-Z2-7]{8}-[\w./-]*/g, '$1')
    .replace(/^(#.*)$/gm, '#')
}

function restoreShape(rendered: string): string {
  return rendered
    .replace(/ for .* \((cluster|local)/g, ' for … ($1')
    .replace(/--comment (?:"(?:\\.|[^"\\\n])*"|[^\s"'\\]+)/g, '--comment …')
    .replace(/\b(KUBE-[A-Z]{2,4})-[A-Z2-7]{16}\b/g, '$1')
    .replace(/^(#.*)$/gm, '#')
}

for (const mode of ['userspace', 'iptables', 'ipvs', 'nftables'] as const) {
  t.test(
    `texts of a Service change only names and comments of the rules in ${mode} mode`,
    async (t) => {
      const definition = await modeLoaders[mode]()
      const render = (of: ServiceSpec) => {
        const planner = definition.planner(testConfig)
        return planner.render(planner.plan(states().put(of).take()))
      }
      const expected = sorted(shapeOf[mode](render(harmless)))
      fc.assert(
        fc.property(texts, (of) => {
          const rendered = render(spec(of))
          t.notMatch(rendered, /[\0\r\u001b]/)
          t.equal(sorted(shapeOf[mode](rendered)), expected)
        }),
        {
          numRuns: 200,
          examples: nasty.map((text) => [
            { namespace: text, name: text, portName: text, option: text },
          ]),
        },
      )
    },
  )
}

/** Sorts lines, because the order of chains depends on names. */
const sorted = (text: string) => text.split('\n').sort().join('\n')

const skipKernel =
  process.getuid?.() !== 0
    ? 'network namespaces need root'
    : spawnSync('nft', ['--version']).error
      ? 'nft is not installed'
      : false

t.test(
  'nft and iptables-restore read hostile texts as names and comments',
  { skip: skipKernel },
  async (t) => {
    const check = (argv: readonly string[], input: string) =>
      spawnSync('unshare', ['-n', ...argv], { input, encoding: 'utf8' })
    const all = nasty.map((text, index) => ({
      ...spec({ namespace: text, name: `${text}${index}`, portName: text, option: text }),
      clusterIp: `10.96.1.${index + 1}`,
      nodePort: 30_100 + index,
      externalIps: [],
      loadBalancerIps: [],
    }))
    const rendered = async (mode: ModeName) => {
      const definition = await modeLoaders[mode]()
      const planner = definition.planner(testConfig)
      return planner.render(
        planner.plan(
          states()
            .put(...all)
            .take(),
        ),
      )
    }
    const nft = check(['nft', '-c', '-f', '-'], await rendered('nftables'))
    t.equal(nft.status, 0, nft.stderr)
    const iptables = check(['iptables-nft-restore', '--test'], await rendered('iptables'))
    t.equal(iptables.status, 0, iptables.stderr)
  },
)

t.test('objects with hostile texts do not throw, and only clean names remain', (t) => {
  const anything = fc.record({ text: hostile, key: hostile })
  fc.assert(
    fc.property(anything, ({ text, key }) => {
      const service = parseService(
        rawService({
          name: text,
          namespace: key,
          labels: { [key]: text },
          annotations: { [key]: text, 'kube-proxy-ts/ipvs-scheduler': text },
          spec: {
            clusterIP: text,
            externalIPs: [text],
            loadBalancerSourceRanges: [text],
            ports: [{ name: text, port: 80, protocol: text, targetPort: text }],
            selector: { [key]: text },
          },
        }),
      )
      t.notMatch(service, { outcome: 'accepted' })
      // Labels, annotations and selectors may have any text, because they reach no rule.
      const labelled = parseService(
        rawService({
          labels: { [key]: text },
          annotations: { [key]: text, 'kube-proxy-ts/ipvs-scheduler': text },
        }),
      )
      const slice = parseEndpointSlice(
        rawSlice({
          labels: { [key]: text },
          annotations: { [key]: text },
          endpoints: [{ addresses: [text], nodeName: text, zone: text }],
        }),
      )
      const tracker = new Tracker({
        ...plainNode,
        nodeName: 'node-1',
        detectLocal: { mode: 'ClusterCIDR', cidrs: [] },
      })
      if (labelled.outcome === 'accepted') tracker.upsertService(labelled.value)
      if (slice.outcome === 'accepted') tracker.upsertEndpointSlice(slice.value)
      for (const { services } of tracker.take().states) {
        for (const { portName } of services.values()) t.equal(portName, 'default/web:http')
      }
    }),
  )
  t.end()
})

// Characters that move the cursor, end the line or change the direction of text.
const unprintable =
  /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]/

t.test('explain prints clean lines for a hostile Service', (t) => {
  for (const mode of modeNames) {
    const explain = (of: ServiceSpec) => {
      const state = states().put(of).take()
      const question = understand(
        { target: `${of.clusterIp}:80`, from: 'pod', protocol: undefined },
        [state],
      )
      if (typeof question === 'string') throw new Error(question)
      const ways = explainPacket(mode, state, testConfig, question.packet)
      const reason = `ready, on ${of.name}`
      const endpoints = [{ key: '10.0.0.1:80', isUsed: true, reason }]
      return explanationText(question, { mode, ways, endpoints, live: ways, notAsked: '' })
    }
    const lines = explain(harmless).split('\n').length
    fc.assert(
      fc.property(texts, (of) => {
        const text = explain(spec(of))
        t.notMatch(text, unprintable)
        t.equal(text.split('\n').length, lines)
      }),
      {
        numRuns: 50,
        examples: nasty.map((text) => [
          { namespace: text, name: text, portName: text, option: text },
        ]),
      },
    )
  }
  t.end()
})

t.test('a hostile label value is one value of one series on /metrics', async (t) => {
  const metrics = new Metrics({ mode: 'userspace', process: false })
  const labels = (service: string) => ({ service, protocol: 'TCP', endpoint: service })
  for (const text of nasty) metrics.count('service_connections_total', labels(text))
  const { body } = await metrics.page()
  const series = body
    .split('\n')
    .filter((line) => line.startsWith('kubeproxy_service_connections_total'))
  t.equal(series.length, nasty.length)
  for (const line of series) {
    t.match(
      line,
      /^kubeproxy_service_connections_total\{service="(?:\\["\\n]|[^"\\])*",protocol="TCP",endpoint="(?:\\["\\n]|[^"\\])*"\} 1$/,
    )
  }
})

t.test('a hostile text is part of one line of the log, as JSON and as text', (t) => {
  fc.assert(
    fc.property(hostile, hostile, (text, key) => {
      const json = JSON.stringify({
        level: 'warn',
        time: 'now',
        msg: text,
        service: text,
        fields: { [key]: text },
      })
      t.notMatch(json, '\n')
      const line = formatLine(json, false)
      t.equal(line.indexOf('\n'), line.length - 1)
      t.notMatch(line.slice(0, -1), unprintable)
    }),
  )
  t.end()
})

t.test('JSON and YAML with hostile texts are clean, and say what they said', (t) => {
  const lines: string[] = []
  const write = (line: string) => void lines.push(line)
  const logger = createLogger({ format: 'json', verbosity: 0, isTerminal: false, write })
  fc.assert(
    fc.property(hostile, hostile, (text, key) => {
      const data = { text, fields: { [key]: [text] }, rules: `a\n\t${text}\n` }
      const json = JSON.stringify(data)
      logger.warn(data, text)
      const logged = lines.pop() ?? ''
      const { text: told, fields, rules, msg } = JSON.parse(logged) as Record<string, unknown>
      const outputs = [
        printed({ output: 'json' }, { data, text: '' }),
        printedOfMany({ output: 'json' }, { data, text: '' }),
        printed({ output: 'yaml' }, { data, text: '' }),
      ]
      const read = outputs.map((output) => JSON.stringify(parse(output)))
      const isSame = read.every((each) => each === JSON.stringify(JSON.parse(json)))
      const isLogged = msg === text && JSON.stringify({ text: told, fields, rules }) === json
      const isClean = [logged, ...outputs].every(
        (output) => !unprintable.test(output.replace(/[\n\t]/g, '')),
      )
      return isSame && isLogged && isClean
    }),
  )
  t.end()
})

t.test('an Event about a hostile name is one object at a path of its own', async (t) => {
  const posted: { path: string; body: object }[] = []
  const nothing = () => undefined
  const events = new ApiEvents({
    client: {
      create: async (path, body) => {
        posted.push({ path, body })
        return undefined
      },
      uidOf: () => Promise.resolve(undefined),
    },
    nodeName: 'node-1',
    log: { debug: nothing, info: nothing, warn: nothing, error: nothing },
    meter: { count: nothing },
    burst: 1000,
  })
  const controller = new AbortController()
  const running = events.run(controller.signal)
  for (const text of nasty) {
    events.record({
      type: 'Warning',
      reason: 'MalformedObject',
      action: 'Sync',
      note: text.repeat(50),
      regarding: { kind: 'Service', namespace: text, name: text },
    })
  }
  for (let tries = 0; tries < 100 && posted.length < nasty.length; tries++)
    await new Promise((resolve) => setImmediate(resolve))
  controller.abort()
  await running
  t.equal(posted.length, nasty.length)
  for (const { path, body } of posted) {
    t.ok(JSON.stringify(body).length < 8000)
    t.match(
      new URL(path, 'http://api').pathname,
      /^\/apis\/events\.k8s\.io\/v1\/namespaces\/[^/]*\/events$/,
      path,
    )
  }
})
