/** Begins each line with a result. The console of the inner kernel has other lines, too. */
export const marker = 'bench-result '
