import { annotationProblem, optionPrefix, readAnnotation, type Options } from './annotations.js'
import { balanceAnnotation, weightAnnotation } from './balance.js'
import { checkAnnotations, whatAnnotation } from './endpoint-check.js'
import { annotationNames, checkedAnnotations, schedulerAnnotation } from './known-annotations.js'
import { nearest, printable } from './names.js'
import { show } from './json.js'

/** Anybody may write thousands of names into one object. */
const mostUnknown = 5

/** What is wrong with the annotations of a Service: values, names, and what lacks another one. */
export function annotationWarnings(options: Options): readonly string[] {
  return [
    ...checkedAnnotations.flatMap((each) => annotationProblem(options, each) ?? []),
    ...unknownNames(options),
    ...idleChecks(options),
    ...idleWeight(options),
  ]
}

function unknownNames(options: Options): readonly string[] {
  const unknown = Object.keys(options).filter((name) => !annotationNames.includes(name))
  const texts = unknown.slice(0, mostUnknown).map((name) => {
    const near = nearest(name, annotationNames)
    const hint =
      near === undefined
        ? `the names are ${annotationNames.join(', ')}`
        : `did you mean ${optionPrefix}${near}?`
    return `annotation ${printable(show(optionPrefix + name))} has no effect, because nothing has this name; ${hint}`
  })
  const more = unknown.length - texts.length
  if (more === 0) return texts
  return [
    ...texts,
    `${more} more annotations ${optionPrefix}… have no effect, because nothing has their names`,
  ]
}

/** Annotations that only say how checks work, and none is asked for. */
function idleChecks(options: Options): readonly string[] {
  const has = ({ name }: { readonly name: string }) => options[name] !== undefined
  if (has(whatAnnotation)) return []
  return checkAnnotations
    .filter(has)
    .map(
      ({ name }) =>
        `annotation ${optionPrefix}${name} has no effect without ${optionPrefix}${whatAnnotation.name}, which asks for the checks`,
    )
}

function idleWeight(options: Options): readonly string[] {
  if (readAnnotation(options, weightAnnotation) === undefined) return []
  const word = options[balanceAnnotation.name]
  // A word that makes no sense is told already.
  if (
    word !== undefined &&
    [undefined, 'weighted', 'first'].includes(balanceAnnotation.parse(word))
  )
    return []
  if (options[schedulerAnnotation.name] !== undefined) return []
  return [
    `annotation ${optionPrefix}${weightAnnotation.name} has no effect without ${optionPrefix}${balanceAnnotation.name}: weighted or first (in ipvs mode: or a scheduler that looks at weights)`,
  ]
}
