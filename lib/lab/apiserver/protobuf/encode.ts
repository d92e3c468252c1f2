/**
 * Protobuf's wire format, as much of it as answers here need: a message is its fields one after
 * the other, and each is a text or a message of its own.
 */
export function field(number: number, ...content: readonly (string | Buffer)[]): Buffer {
  const body = Buffer.concat(
    content.map((each) => (typeof each === 'string' ? Buffer.from(each) : each)),
  )
  // Wire type 2: a length, then so many bytes.
  return Buffer.concat([varint(number * 8 + 2), varint(body.length), body])
}

function varint(value: number): Buffer {
  const bytes: number[] = []
  let rest = value
  while (rest > 127) {
    bytes.push((rest % 128) + 128)
    rest = Math.floor(rest / 128)
  }
  return Buffer.from([...bytes, rest])
}
