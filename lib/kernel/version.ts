/** Whether a version such as `6.12.117+deb13-cloud-amd64` is this one or newer. */
export function atLeast(version: string, least: readonly number[]): boolean {
  const parts = version.split(/[.-]/).map((part) => Number.parseInt(part, 10))
  for (const [index, wanted] of least.entries()) {
    const part = parts[index] ?? 0
    if (Number.isNaN(part)) return false
    if (part !== wanted) return part > wanted
  }
  return true
}
