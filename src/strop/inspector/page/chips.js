// Codes as chips.

import { isErased } from "./program.js";

/** Hues of a code, in steps of the golden angle: neighbouring codes differ. Notebooks use the same. */
export const hue = (code) => Math.round((code * 137.508) % 360);

export function makeChip(code, k) {
  const chip = document.createElement("button");
  chip.type = "button";
  chip.className = "chip";
  chip.dataset.k = k;
  chip.textContent = code;
  chip.style.setProperty("--hue", hue(code));
  return chip;
}

/** Show `program` in `row`. Existing chips are reused, so that the focus is kept. */
export function drawChips(row, program, { scores, token, pair }) {
  while (row.children.length > program.codes.length) row.lastChild.remove();
  const top = Math.max(...(scores ?? []).map((score) => score ?? 0), 1e-9);
  program.codes.forEach((code, k) => {
    const chip = row.children[k] ?? row.appendChild(makeChip(code, k));
    const cut = k >= program.length;
    const hole = isErased(program, k);
    const score = cut || hole ? null : scores?.[k];
    chip.textContent = code;
    chip.style.setProperty("--hue", hue(code));
    chip.style.setProperty("--share", score ? score / top : 0);
    chip.classList.toggle("cut", cut);
    chip.classList.toggle("erased", hole && !cut);
    chip.classList.toggle("first-cut", k === program.length);
    chip.classList.toggle("current", k === token);
    chip.classList.remove("target");
    chip.setAttribute("aria-pressed", pair.includes(k));
    chip.tabIndex = k === (token ?? 0) ? 0 : -1; // Tab stops once, arrow keys move within
    const status = cut ? "cut off" : hole ? "erased" : "active";
    const effect = score || score === 0 ? `, effect ${score.toFixed(3)}` : "";
    chip.setAttribute("aria-label", `Token ${k}, code ${code}, ${status}${effect}`);
  });
}
