/**
 * Reads the TAP of one program and counts its tests. A test is a subtest without further subtests,
 * or the whole program where it has none; what a test asserts is not counted.
 */
export class TapReader {
  name
  passed = 0
  failed = 0
  skipped = 0
  /** Every test with its milliseconds. */
  tests = []
  /** Failures with the lines that explain them, and the reasons of what was left out. */
  notes = []
  /** The subtests under way, the outermost first. */
  #open = []
  #isPlanKept = false
  #hasSubtests
  #isFlat
  /** The indentation of the failure that the next lines explain; -1: they explain none. */
  #failureDepth = -1

  /** `isFlat`: there are no subtests, every result is a test. */
  constructor(name, { isFlat = false } = {}) {
    this.name = name
    this.#isFlat = isFlat
    this.#hasSubtests = isFlat
  }

  read(line) {
    this.#note(line)
    const text = line.trimStart()
    const depth = line.length - text.length
    const subtest = /^# Subtest: (.*)/.exec(text)
    if (subtest) {
      const parent = this.#open.at(-1)
      if (parent) parent.hasSubtests = true
      this.#hasSubtests = true
      this.#open.push({ name: subtest[1], depth, failedBefore: this.failed, hasSubtests: false })
    } else if (/^(not )?ok \d+/.test(text)) {
      this.#result(text, depth)
    } else if (depth === 0 && /^1\.\.\d/.test(text)) {
      this.#isPlanKept = true
      if (/^1\.\.0 .*# skip/i.test(text)) this.skipped++
    }
  }

  /** Notes the end of the program. Without a plan the program ended too early. */
  end(code, ms) {
    const isWell = code === 0 && this.#isPlanKept
    if (!isWell && this.failed === 0) {
      this.failed++
      const why = code === 0 ? 'it ended before its tests did' : `it ended with ${code}`
      this.notes.push(`not ok - ${this.name}: ${why}`)
    } else if (isWell && !this.#hasSubtests && this.skipped === 0) {
      this.passed++
      this.tests.push({ name: this.name, ms })
    }
  }

  #result(text, depth) {
    const isFailure = text.startsWith('not ') && !/ # todo/i.test(text)
    const own = this.#testThatEnds(text, depth)
    if (/ # (skip|todo)/i.test(text)) this.skipped++
    // An assertion counts with its test, or with the program if it is outside of all tests.
    else if (!own || (own.hasSubtests && !isFailure)) return
    else if (!isFailure) this.passed++
    // A failure inside of this test was counted already.
    else if (this.failed === own.failedBefore) this.failed++
    if (own && !own.hasSubtests) {
      const ms = Number(/ # time=([\d.]+)ms/.exec(text)?.[1] ?? 0)
      this.tests.push({ name: `${this.name}: ${own.name}`, ms })
    }
  }

  #testThatEnds(text, depth) {
    if (this.#open.at(-1)?.depth === depth) return this.#open.pop()
    if (!this.#isFlat || depth > 0) return undefined
    const name = text.replace(/^(not )?ok \d+ (- )?| # .*$/g, '')
    return { name, failedBefore: this.failed, hasSubtests: false }
  }

  #note(line) {
    const depth = line.length - line.trimStart().length
    if (/^\s*not ok /.test(line) && !/ # todo/i.test(line)) {
      if (this.#failureDepth < 0) this.#failureDepth = depth
    } else if (this.#failureDepth >= 0 && line.trim() !== '' && depth <= this.#failureDepth) {
      this.#failureDepth = -1
    }
    if (
      this.#failureDepth >= 0 ||
      / # skip|^# (?!Subtest).* (cannot run on|leaves out) |^Bail out/i.test(line)
    ) {
      this.notes.push(line)
    }
  }
}
