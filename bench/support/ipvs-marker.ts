/** Before a result on the console of the inner kernel, where anything else may be said too. */
export const marker = 'bench-result '
