// Exports: the program, the picture, the Python code.

import { hue } from "./chips.js";
import { isErased, toWire } from "./program.js";

export function download(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** One line of the `.jsonl` that `strop.Program.load` reads. */
export function programFile(program) {
  return new Blob([JSON.stringify(toWire(program)), "\n"], { type: "application/json" });
}

/** Python code that reproduces the view. */
export function pythonLines({ model, source, encoded, program, token, pair }) {
  const shown = token !== null && token < program.length;
  const paired = pair.length === 2;
  const lines = [];
  if (!source || paired) lines.push("import torch", "");
  lines.push("import strop");
  if (source?.scene) lines.push("from strop.data import ScenesDataset");
  if (source?.sample !== undefined) lines.push("from strop.data.samples import photograph");
  if (source) lines.push("from strop.metrics import r2, r2_centred");
  if (paired) lines.push("from strop.analysis.counterfactual import pair_erasure");
  lines.push("", `tok = strop.load(${JSON.stringify(model.name)})`);
  if (source) {
    lines.push(`image = ${imageLine(source)}`, "program = tok.encode(image)");
    lines.push(...editLines(encoded, program));
  } else {
    lines.push(
      "program = strop.Program(",
      `    codes=torch.tensor([[${encoded.codes.join(", ")}]]),`,
      `    lengths=torch.tensor([${encoded.length}]),`,
      `    codebook_size=${encoded.codebook_size},`,
      `    model=${JSON.stringify(encoded.model)},`,
      ")",
      ...editLines({ ...encoded, erased: [] }, program),
    );
  }
  lines.push("", "field = tok.interpret(program)");
  if (model.decodes) lines.push("preview = tok.decode(field)");
  if (source) {
    lines.push("teacher = tok.field(image)");
    lines.push("print(r2(field, teacher), r2_centred(field, teacher))");
  }
  if (shown) lines.push(`erasure_map = strop.erasure(tok, program)[0, ${token}]`);
  if (paired) {
    const [i, j] = pair;
    lines.push(
      `pairs = torch.tensor([(0, ${i}, ${j}), (0, ${i}, ${i}), (0, ${j}, ${j})])`,
      "_, (both, first, second) = next(pair_erasure(tok, program, pairs))",
      "synergy = both - first - second",
    );
  }
  return `${lines.join("\n")}\n`;
}

function imageLine({ scene, name, sample }) {
  if (sample !== undefined) return `photograph(${JSON.stringify(name)})`;
  if (!scene) return JSON.stringify(name);
  return `ScenesDataset(1, seed=${scene.seed}, start=${scene.index}, size=${scene.size})[0].image`;
}

/** Edits that turn the encoded program into the shown one. Codes are replaced at full length. */
function editLines(encoded, program) {
  const changed = program.codes.flatMap((code, k) => {
    const filled = isErased(encoded, k) && !isErased(program, k);
    return code !== encoded.codes[k] || filled ? [[k, code]] : [];
  });
  const lines = changed.map(([k, code]) => `program = program.replace(${k}, ${code})`);
  if (changed.length) lines.unshift(`program = program.with_lengths(${program.codes.length})`);
  if (changed.length || program.length !== encoded.length) {
    lines.push(`program = program.with_lengths(${program.length})`);
  }
  for (const k of program.erased) {
    if (k < program.length && !isErased(encoded, k)) lines.push(`program = program.erase(${k})`);
  }
  return lines;
}

/** The pictures and the program as one PNG. */
export function viewPicture({ panels, program, caption }) {
  const side = 256;
  const gap = 24;
  const columns = Math.floor((panels.length * (side + gap) - gap) / 52);
  const rows = Math.ceil(program.codes.length / columns);
  const canvas = document.createElement("canvas");
  canvas.width = panels.length * (side + gap) + gap;
  canvas.height = side + 110 + rows * 32 + gap;
  const context = canvas.getContext("2d");
  const style = getComputedStyle(document.body);
  const ink = style.color;
  context.fillStyle = style.backgroundColor;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.font = "14px system-ui, sans-serif";
  panels.forEach(({ name, layers }, at) => {
    const left = gap + at * (side + gap);
    for (const layer of layers) {
      context.imageSmoothingEnabled = layer instanceof HTMLImageElement;
      context.drawImage(layer, left, gap, side, side);
    }
    context.fillStyle = ink;
    context.fillText(name, left, side + gap + 22);
  });
  context.fillText(caption, gap, side + gap + 54);
  context.textAlign = "center";
  program.codes.forEach((code, k) => {
    const left = gap + (k % columns) * 52;
    const top = side + gap + 74 + Math.floor(k / columns) * 32;
    const shown = k < program.length && !isErased(program, k);
    context.fillStyle = context.strokeStyle = `hsl(${hue(code)} 65% 84%)`;
    if (shown) context.fillRect(left, top, 46, 24);
    else context.strokeRect(left + 0.5, top + 0.5, 45, 23);
    context.fillStyle = shown ? "#222" : ink;
    context.fillText(code, left + 23, top + 17);
  });
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
