import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { quoted } from '../support/guest.js'
import type { Suite } from '../support/debian-packages.js'

const wanted = ['nftables', 'iptables', 'ipset']

/**
 * Scripts that run nft, iptables and ipset of a suite with its own C library, under their usual
 * names.
 */
export function toolsOf(suite: Suite): Readonly<Record<string, string>> {
  const versions = wanted.map((name) => suite.version(name) ?? 'none').join('-')
  const folder = suite.unpack(`tools-${versions.replaceAll(/[^\w.+-]/g, '_')}`, [
    ...wanted,
    ...librariesOf(suite),
  ])
  const libraries = ['usr/lib/x86_64-linux-gnu', 'lib/x86_64-linux-gnu'].map((path) =>
    join(folder, path),
  )
  const loader = ['lib64', 'usr/lib64', 'usr/lib/x86_64-linux-gnu', 'lib/x86_64-linux-gnu']
    .map((path) => join(folder, path, 'ld-linux-x86-64.so.2'))
    .find((path) => existsSync(path))
  if (loader === undefined) throw new Error(`${suite.name}: no C library in its packages`)
  const plugins = libraries.map((path) => join(path, 'xtables')).find((path) => existsSync(path))
  const script = (program: string, name: string) => {
    const file = ['usr/sbin', 'sbin', 'usr/bin']
      .map((path) => join(folder, path, program))
      .find((path) => existsSync(path))
    if (file === undefined) throw new Error(`${suite.name}: no ${program} in its packages`)
    return `#!/bin/sh
XTABLES_LIBDIR=${quoted(plugins ?? '')} exec ${quoted(loader)} --library-path ${quoted(libraries.join(':'))} ${quoted(file)} ${name} "$@"
`
  }
  const names = ['iptables', 'ip6tables'].flatMap((tool) =>
    ['', '-save', '-restore'].map((verb) => [tool, verb] as const),
  )
  return {
    nft: script('nft', ''),
    ipset: script('ipset', ''),
    ...Object.fromEntries(
      names.flatMap(([tool, verb]) => [
        [`${tool}${verb}`, script('xtables-nft-multi', `${tool}${verb}`)],
        [`${tool}-nft${verb}`, script('xtables-nft-multi', `${tool}${verb}`)],
        [`${tool}-legacy${verb}`, script('xtables-legacy-multi', `${tool}${verb}`)],
      ]),
    ),
  }
}

/** All packages of libraries that they load, with the C library. */
function librariesOf(suite: Suite): readonly string[] {
  const found = new Set<string>()
  const follow = (name: string) => {
    for (const other of suite.dependsOn(name)) {
      if (!/^lib[a-z0-9]/.test(other) || found.has(other) || suite.version(other) === undefined)
        continue
      found.add(other)
      follow(other)
    }
  }
  wanted.forEach(follow)
  return [...found]
}
