import t from 'tap'
import { configWith } from '../../lib/config/load.js'
import { nftablesSettings } from '../../lib/modes/nftables/settings.js'
import { runCommand, type Run } from '../../lib/kernel/command.js'
import { Nft, type RulesetWriter } from '../../lib/kernel/nftables/nft.js'
import { openNfTables } from '../../lib/kernel/nftables-netlink/nf-tables.js'
import { NftablesApplier } from '../../lib/modes/nftables/apply.js'
import { knownByFamily } from '../../lib/modes/known.js'
import { nftablesPlanner } from '../../lib/modes/nftables/plan.js'
import type { Case } from '../conformance/case.js'
import { readCases } from '../conformance/case-file.js'
import { caseStates } from '../conformance/case-states.js'
import { casesFolder } from '../conformance/cases-folder.js'
import { insideNamespace } from '../../lib/kernel/network-namespaces.js'
import { contextOf } from '../support/mode-context.js'
import { createNetns, netnsSkip, programSkip } from '../support/netns.js'
import { nftLibrary } from '../support/nft-library.js'
import { withElementsSorted } from '../support/nft-listing.js'

const library = nftLibrary()
/** The first steps are those of the program itself. */
const stepsOfProgram = 5

/** A namespace with a writer for it. */
function place(name: string, writerOf: (run: Run) => RulesetWriter) {
  const netns = createNetns(name)
  t.teardown(() => netns.remove())
  let nft = runCommand
  // This thread enters the namespace and starts the program: that is faster than `ip netns exec`.
  const run: Run = (file, args, options) =>
    insideNamespace(netns.name, () => nft(file, args, options))
  const writer = insideNamespace(netns.name, () => writerOf(run))
  const list = async () => withElementsSorted((await run('nft', ['list', 'ruleset'])).stdout)
  return {
    newApplier: () =>
      new NftablesApplier({
        known: knownByFamily(),
        writer,
        now: () => 0,
        context: contextOf().context,
      }),
    list,
    use: (other: Run) => void (nft = other),
  }
}

void t.test(
  'NF21: nft and netlink make the same ruleset at every step of every case, byte for byte',
  { skip: netnsSkip || programSkip('nft') },
  async (t) => {
    const byText = place('nftables-text', (run) => new Nft(run))
    const byNetlink = place('nftables-link', () => {
      const nfTables = openNfTables()
      t.teardown(() => nfTables.close())
      return nfTables
    })
    const different: string[] = []
    let serial = 0
    let compared = 0
    let bytes = 0
    for (const each of readCases(casesFolder)) {
      const appliers = [byText.newApplier(), byNetlink.newApplier()]
      const plan = nftablesPlanner(settingsOf(each))
      for (const { states } of caseStates(each, 'nftables', () => serial++)) {
        for (const state of states) {
          const next = plan(state)
          await Promise.all(appliers.map((applier) => applier.apply(next)))
        }
        const [text, netlink] = await Promise.all([byText.list(), byNetlink.list()])
        compared++
        if (compared === stepsOfProgram && library) {
          for (const each of [byText, byNetlink]) each.use(library)
          t.equal(await byText.list(), text, 'the library lists what the program lists')
        }
        bytes += text.length
        if (text === netlink) continue
        different.push(`${each.topic}: ${each.name}`)
        if (different.length === 1) t.equal(netlink, text, `${each.topic}: ${each.name}`)
      }
    }
    t.same(different, [])
    t.ok(compared > 250, `${compared} steps compared`)
    t.ok(bytes / compared > 3000, `of ${Math.round(bytes / compared)} bytes`)
  },
)

function settingsOf({ settings }: Case) {
  return nftablesSettings(configWith({ 'nftables.masqueradeAll': settings.masqueradeAll }))
}
