// Programs are values: every edit returns a new program. The server validates it.

/** From the JSON of the API: `codes` and `rest` become one list. */
export function fromWire({ codes, rest, ...others }) {
  return { ...others, codes: [...codes, ...(rest ?? [])], erased: others.erased ?? [] };
}

export function toWire({ codes, length, ...others }) {
  return { ...others, length, codes: codes.slice(0, length), rest: codes.slice(length) };
}

export const isErased = (program, k) => program.erased.includes(k);

export const isActive = (program, k) => k < program.length && !isErased(program, k);

export const withLength = (program, length) => ({ ...program, length });

export function toggleErased(program, k) {
  const erased = isErased(program, k)
    ? program.erased.filter((each) => each !== k)
    : [...program.erased, k].sort((a, b) => a - b);
  return { ...program, erased };
}

/** Another code at position k. An erased position is restored. */
export function replaceCode(program, k, code) {
  const codes = program.codes.with(k, code);
  return { ...program, codes, erased: program.erased.filter((each) => each !== k) };
}

/** Swap the tokens at i and j. Erased tokens stay erased. */
export function swap(program, i, j) {
  const codes = program.codes.with(i, program.codes[j]).with(j, program.codes[i]);
  const place = (k) => (k === i ? j : k === j ? i : k);
  return { ...program, codes, erased: program.erased.map(place).sort((a, b) => a - b) };
}

/** Move the token at `from` to `to`; those between move by one. */
export function moveTo(program, from, to) {
  const order = program.codes.map((_, k) => k);
  order.splice(to, 0, ...order.splice(from, 1));
  const erased = order.flatMap((k, at) => (isErased(program, k) ? [at] : []));
  return { ...program, codes: order.map((k) => program.codes[k]), erased };
}

export const same = (a, b) =>
  a.length === b.length && sameCodes(a, b) && `${a.erased}` === `${b.erased}`;

const sameCodes = (a, b) => `${a.codes}` === `${b.codes}`;

/** A key for the curve by length, which does not depend on the length. */
export const withoutLength = (program) => `${program.codes}/${program.erased}`;

/** Undo and redo of values. */
export class History {
  past = [];
  future = [];
  #merging = false;

  /** Add `before` to the undo steps. With `merge`, the steps of one drag become one. */
  push(before, merge = false) {
    if (!(merge && this.#merging)) this.past.push(before);
    this.#merging = merge;
    this.future = [];
  }

  endMerge() {
    this.#merging = false;
  }

  undo(now) {
    this.endMerge();
    if (!this.past.length) return null;
    this.future.push(now);
    return this.past.pop();
  }

  redo(now) {
    this.endMerge();
    if (!this.future.length) return null;
    this.past.push(now);
    return this.future.pop();
  }

  clear() {
    this.past = [];
    this.future = [];
    this.endMerge();
  }
}
