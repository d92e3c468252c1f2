/** Where the programs of an administrator are; the search path of other users leaves them out. */
const adminFolders = ['/usr/sbin', '/sbin']

/**
 * The environment of the programs that are started: messages in English, and found where
 * scripts/setup finds them, so that `iptables` in /usr/sbin is never called "not installed".
 */
export function programEnvironment(own: NodeJS.ProcessEnv = process.env): NodeJS.ProcessEnv {
  // An empty entry would mean the current folder.
  const path = own.PATH === undefined || own.PATH === '' ? '/usr/bin:/bin' : own.PATH
  const folders = path.split(':')
  const missing = adminFolders.filter((folder) => !folders.includes(folder))
  return { ...own, PATH: [path, ...missing].join(':'), LC_ALL: 'C' }
}
