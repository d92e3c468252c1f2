import { splitArguments } from '../../kernel/iptables.js'

/** Where iptables-save says the same thing in other words than went in. */
const sayings: readonly (readonly [RegExp, string | ((...found: string[]) => string)])[] = [
  [/--or-mark (\S+)/, '--set-xmark $1/$1'],
  [/--xor-mark (\S+)/, '--set-xmark $1/0x0'],
  // The kernel counts in parts of 2^31.
  [
    /--probability (\S+)/,
    (_, share = '') => `--probability ${Math.round(Number(share) * 2 ** 31)}`,
  ],
  [/ --reject-with icmp6?-port-unreachable/, ''],
  [/ --mask (255\.255\.255\.255|ffff(:ffff){7}) --rsource/, ''],
  [/-[sd] (0\.0\.0\.0|::)\/0 /, ''],
]

/** Whether a saved rule is the one that was written. */
export function isSameRule(saved: string, written: string): boolean {
  return saved === written || canonical(saved) === canonical(written)
}

/** One wording for all the ways to say the same. */
export function canonical(text: string): string {
  let plain = text
  for (const [saying, meaning] of sayings) {
    plain =
      typeof meaning === 'string' ? plain.replace(saying, meaning) : plain.replace(saying, meaning)
  }
  // Versions differ in what they quote, and some leave two blanks.
  return /["\\]|\s{2}/.test(plain) ? splitArguments(plain).join(' ') : plain
}
