// The page: one state, functions that change it, functions that show it.

import { Refusal, ask, latest, settled } from "./api.js";
import { keepImage, keptImage, readAddress, writeAddress } from "./address.js";
import { drawChips, makeChip } from "./chips.js";
import { drawCurve } from "./curve.js";
import * as drawing from "./drawing.js";
import { download, programFile, pythonLines, viewPicture } from "./exports.js";
import * as programs from "./program.js";

const $ = (id) => document.getElementById(id);
const history = new programs.History();

const state = {
  model: null,
  source: null, //    { scene } or { name }; null for a program without its image
  image: null, //     the model's square, a PNG in base64
  encoded: null, //   the program as it came
  predicted: null,
  program: null, //   the program as it is shown
  accepted: null, //  the last one the server understood
  result: null, //    its field, preview and scores
  curve: null,
  erasure: null,
  synergy: null,
  clusters: null,
  view: "pca",
  k: 6,
  token: null, //     the current position
  hover: null,
  pair: [],
  patch: null, //     row * grid + column
  cursor: 0, //       the patch the arrow keys are at
  codePage: null,
  second: null, //    { image, program }
  clickSelects: matchMedia("(pointer: coarse)").matches,
};

// What went wrong, in a sentence; everything else stays as it was.

function complain(error) {
  if (!(error instanceof Refusal)) console.error(error);
  $("sentence").textContent = error.message;
  $("message").hidden = false;
}

const tell = (text) => ($("status").textContent = text);

/** `work` as an event handler: what it throws is shown. */
const guarded =
  (work) =>
  async (...given) => {
    try {
      return await work(...given);
    } catch (error) {
      complain(error);
    }
  };

// Images.

async function openImage(image, source, wanted = {}) {
  const made = await ask("encode", { image });
  const encoded = programs.fromWire(made.program);
  $("message").hidden = true;
  Object.assign(state, { source, image: made.image, predicted: made.program.length });
  if (source.name) keepImage(source.name, made.image);
  begin(encoded, wanted);
}

async function drawScene(objects, seed, wanted) {
  const { image, ...scene } = await ask("scene", { objects, seed });
  $("objects").value = objects;
  $("seed").value = seed;
  showSliders();
  await openImage(image, { scene: { ...scene, objects } }, wanted);
}

const base64Of = (blob) =>
  new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result.split(",")[1]);
    reader.onerror = () => failed(new Refusal("The file cannot be read. Choose another."));
    reader.readAsDataURL(blob);
  });

/** A file's content, if it is not too large to send. */
async function readFile(file) {
  const { max_bytes } = state.model;
  if (file.size > max_bytes) {
    throw new Refusal(`${file.name} is larger than ${max_bytes / 2 ** 20} MiB. Choose a smaller one.`);
  }
  return base64Of(file);
}

async function openFile(file) {
  if (/\.jsonl?$/.test(file.name)) await openProgram(await file.text());
  else await openImage(await readFile(file), { name: file.name || "pasted.png" });
}

async function openProgram(text) {
  let wire;
  try {
    wire = JSON.parse(text.trim().split("\n")[0]);
  } catch {
    throw new Refusal("This file holds no program. Open one that was exported here.");
  }
  await ask("interpret", { program: wire }); // throws if it makes no sense
  const program = programs.fromWire(wire);
  // If it was written for the image on the screen, that stays to compare with.
  const ours = state.encoded && state.image && `${state.encoded.codes}` === `${program.codes}`;
  if (ours) edit(program);
  else {
    Object.assign(state, { source: null, image: null, predicted: null });
    begin(program, {});
  }
}

/** Start over with a program; `wanted` are edits and selections from the address. */
function begin(encoded, wanted) {
  history.clear();
  const program = wanted.codes
    ? { ...encoded, codes: wanted.codes, length: wanted.length, erased: wanted.erased }
    : encoded;
  Object.assign(state, {
    encoded,
    program,
    accepted: encoded,
    result: null,
    curve: null,
    erasure: null,
    synergy: null,
    clusters: null,
    token: wanted.token ?? null,
    pair: wanted.pair ?? [],
    patch: wanted.patch ?? null,
    hover: null,
  });
  if (wanted.clusters) Object.assign(state, { view: "clusters", k: wanted.clusters });
  changed();
}

// Edits.

function edit(next, { merge = false } = {}) {
  if (programs.same(next, state.program)) return;
  history.push(state.program, merge);
  state.program = next;
  changed();
}

function travel(step) {
  const found = history[step](state.program);
  if (found) {
    state.program = found;
    changed();
  }
}

const setLength = (length, merge) => {
  const bounded = Math.min(Math.max(length, 1), state.program.codes.length);
  edit(programs.withLength(state.program, bounded), { merge });
};

function toggle(k) {
  if (k >= state.program.length) setLength(k + 1);
  else edit(programs.toggleErased(state.program, k));
}

function select(k) {
  state.pair = state.pair.includes(k)
    ? state.pair.filter((each) => each !== k)
    : [...state.pair, k].slice(-2);
  state.synergy = null;
  askSynergy();
  show();
}

function move(k, by) {
  const to = k + by;
  if (to < 0 || to >= state.program.length || k >= state.program.length) return;
  state.token = to;
  edit(programs.swap(state.program, k, to));
  chipAt(to).focus();
}

// Questions to the server. Each answer is for one program and is dropped if that is gone.

function changed() {
  askField();
  askStudies();
  show();
}

const askField = latest(async () => {
  const program = state.program;
  const body = { program: programs.toWire(program) };
  if (state.image) body.image = state.image;
  try {
    const result = await ask("interpret", body);
    state.accepted = program;
    if (state.program === program) $("message").hidden ||= Boolean(result);
    state.result = result;
    await showFields();
  } catch (error) {
    complain(error);
    if (state.program === program) {
      state.program = state.accepted;
      history.past.pop();
      askStudies();
    }
  }
  show();
});

const study = (path, body, keep) =>
  latest(
    guarded(async () => {
      const program = state.program;
      const asked = body();
      if (!asked) return;
      const answer = await ask(path, { program: programs.toWire(program), ...asked });
      if (state.program !== program) return;
      keep(answer, program);
      show();
    }),
  );

const askErasure = study("erasure", () => ({}), (answer) => (state.erasure = answer));

const askCurve = study(
  "curve",
  () => state.image && state.curve?.of !== programs.withoutLength(state.program) && { image: state.image },
  (answer, program) => (state.curve = { ...answer, of: programs.withoutLength(program) }),
);

const askSynergy = study(
  "synergy",
  () => {
    const [first, second] = state.pair;
    const both = state.pair.length === 2 && state.pair.every((k) => programs.isActive(state.program, k));
    return both && { first, second };
  },
  (answer) => (state.synergy = answer),
);

const askClusters = study(
  "clusters",
  () => state.view === "clusters" && state.image && { image: state.image, k: state.k },
  (answer) => {
    state.clusters = answer;
    showFields();
  },
);

const askAll = settled(() => {
  if (state.program !== state.accepted) {
    askStudies(); // not understood yet, or never
    return;
  }
  askErasure();
  askCurve();
  askSynergy();
  askClusters();
}, 120);

function askStudies() {
  state.erasure = null;
  state.synergy = null;
  askAll();
}

async function openCode(code) {
  const page = await ask(`codes/${code}`);
  state.codePage = code;
  const some = page.encoded < page.total ? ` (${page.encoded} of ${page.total} encoded so far)` : "";
  $("code-title").textContent = `Code ${code}`;
  $("code-told").textContent =
    `Active ${page.count === 1 ? "once" : `${page.count} times`} in ${page.encoded} images${some}.` +
    (page.count > page.appearances.length ? ` The first ${page.appearances.length}:` : "");
  $("appearances").replaceChildren(...page.appearances.map(appearance));
  $("code-page").showModal();
  writeAddress(state);
}

function appearance({ name, thumbnail, position, length, map }) {
  const item = document.createElement("li");
  const square = document.createElement("div");
  square.className = "square";
  const image = document.createElement("img");
  image.src = `data:image/webp;base64,${thumbnail}`;
  image.alt = name;
  const canvas = document.createElement("canvas");
  drawing.paintHeat(canvas, map, drawing.largest(map), true);
  square.append(image, canvas);
  const caption = document.createElement("span");
  caption.textContent = `${name}, token ${position} of ${length}`;
  item.append(square, caption);
  return item;
}

// Showing.

const chipAt = (k) => $("chips").children[k];
const number = (value, digits = 3) =>
  value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−");

function show() {
  const { program } = state;
  if (!program) return;
  $("image").hidden = !state.image;
  $("no-image").hidden = Boolean(state.image);
  if (state.image) {
    $("image").src = drawing.pngAddress(state.image);
    $("image").alt = state.source.scene
      ? `Rendered scene of ${state.source.scene.objects} objects`
      : state.source.name;
  }
  drawChips($("chips"), program, { scores: state.erasure?.scores, token: state.token, pair: state.pair });
  showScores();
  showLength();
  showOverlay();
  showToken();
  showPair();
  showPatch();
  showSecond();
  $("undo").disabled = !history.past.length;
  $("redo").disabled = !history.future.length;
  $("reset").disabled = programs.same(program, state.encoded);
  $("click-erase").setAttribute("aria-pressed", !state.clickSelects);
  $("click-select").setAttribute("aria-pressed", state.clickSelects);
  $("pca").setAttribute("aria-pressed", state.view === "pca");
  $("clusters").setAttribute("aria-pressed", state.view === "clusters");
  $("clusters").disabled = !state.image;
  $("k-label").hidden = state.view !== "clusters";
  writeAddress(state);
}

function showScores() {
  const scores = state.result?.scores;
  $("r2").textContent = number(scores?.r2);
  $("r2-centred").textContent = number(scores?.r2_centred);
  $("cosine").textContent = number(scores?.cosine);
  $("length-shown").textContent = `${state.program.length} of ${state.program.codes.length}`;
  $("bits").textContent = Math.round(state.program.length * Math.log2(state.program.codebook_size));
}

function showLength() {
  const { program, predicted } = state;
  $("length").max = program.codes.length;
  $("length").value = program.length;
  const told = predicted ? `, predicted ${predicted}` : "";
  $("length").setAttribute("aria-valuetext", `${program.length} of ${program.codes.length} codes${told}`);
  drawCurve($("curve"), {
    curve: state.curve,
    length: program.length,
    predicted,
    capacity: program.codes.length,
    scores: state.accepted === program ? state.result?.scores : null,
  });
}

async function showFields() {
  const { result, clusters, view } = state;
  if (!result) return;
  $("preview").hidden = !result.preview;
  if (result.preview) $("preview").src = drawing.pngAddress(result.preview);
  $("preview-caption").textContent = result.preview ? "Preview" : "No decoder, no preview";
  if (view === "clusters" && clusters) {
    drawing.paintClusters($("teacher"), clusters.teacher);
    drawing.paintClusters($("field"), clusters.interpreted);
  } else {
    await drawing.paintPng($("field"), result.field);
    if (result.teacher) await drawing.paintPng($("teacher"), result.teacher);
    else drawing.clear($("teacher"));
  }
  if (result.error) {
    const top = drawing.largest(result.error);
    drawing.paintHeat($("error"), result.error, top);
    $("error-shown").textContent = `up to ${number(top, 2)}`;
  } else {
    drawing.clear($("error"));
    $("error-shown").textContent = "";
  }
}

/** Which map lies over the image: the synergy of a pair, or what one token holds up. */
function shownMap() {
  const { pair, synergy, hover, erasure } = state;
  const token = hover ?? state.token;
  const onPair = hover === null || pair.includes(hover);
  if (pair.length === 2 && synergy && onPair) {
    const name = `Synergy of ${pair[0]} and ${pair[1]}`;
    return { rows: synergy.map, name, diverging: true };
  }
  if (token === null || !programs.isActive(state.program, token)) return null;
  const rows = erasure?.maps[token];
  if (!rows || rows[0][0] === null) return null;
  return { rows, name: `Held up by token ${token}`, diverging: false };
}

function showOverlay() {
  const shown = shownMap();
  const canvas = $("overlay");
  $("legend").hidden = !shown;
  canvas.hidden = !shown;
  $("image-caption").textContent = shown?.name ?? (state.source?.name || "Image");
  canvas.dataset.map = shown?.name ?? "";
  if (shown) {
    const top = drawing.largest(shown.rows);
    if (shown.diverging) drawing.paintDiverging(canvas, shown.rows, top);
    else drawing.paintHeat(canvas, shown.rows, top, true);
    drawing.paintScale($("scale"), shown.diverging);
    $("low").textContent = shown.diverging ? number(-top) : "0";
    $("high").textContent = number(top);
  }
  showCursor();
}

/** The frame around the chosen patch. */
function showCursor() {
  const { grid } = state.model;
  const chosen = state.patch ?? (document.activeElement === $("patches") ? state.cursor : null);
  const frame = $("patches").querySelector(".frame") ?? document.createElement("div");
  frame.className = "frame";
  frame.hidden = chosen === null;
  frame.style.setProperty("--column", (chosen % grid) / grid);
  frame.style.setProperty("--row", Math.floor(chosen / grid) / grid);
  frame.style.setProperty("--size", 1 / grid);
  $("patches").append(frame);
}

function showToken() {
  const { program, token, erasure } = state;
  const shown = state.hover ?? token;
  $("edit").hidden = token === null;
  $("token-title").textContent = shown === null ? "Token" : `Token ${shown}`;
  if (shown === null) return;
  $("token-told").textContent = describe(shown, program, erasure);
  if (token === null) return;
  if (document.activeElement !== $("code")) $("code").value = program.codes[token];
  $("erase").textContent = programs.isErased(program, token) ? "Restore" : "Erase";
  $("erase").disabled = token >= program.length;
  $("earlier").disabled = token === 0 || token >= program.length;
  $("later").disabled = token >= program.length - 1;
}

function describe(k, program, erasure) {
  if (k >= program.length) return `Code ${program.codes[k]}, past the length. A click reaches for it.`;
  if (programs.isErased(program, k)) return `Code ${program.codes[k]}, erased. A click restores it.`;
  const score = erasure?.scores[k];
  if (score === undefined) return `Code ${program.codes[k]}`;
  if (score === null) return `Code ${program.codes[k]}, the only one left.`;
  const better = erasure.scores.filter((other) => other > score).length;
  const rank = better ? `rank ${better + 1}` : "the most";
  return `Code ${program.codes[k]}, holds up ${number(score)} of the field, ${rank} of ${program.length}.`;
}

function showPair() {
  const { pair, synergy } = state;
  $("pair-tools").hidden = pair.length < 2;
  if (pair.length < 2) {
    $("pair-told").textContent = pair.length
      ? `Token ${pair[0]} and … select another.`
      : "Shift-click two codes, or press Space on them, for their synergy.";
    return;
  }
  const score = synergy ? `synergy ${number(synergy.score, 4)}` : "synergy where both are active";
  $("pair-told").textContent = `Tokens ${pair[0]} and ${pair[1]}: ${score}.`;
}

function showPatch() {
  const { patch, erasure, program, model } = state;
  if (patch === null) {
    $("patch-told").textContent = "Click the image to ask which tokens hold a patch up.";
    $("ranking").replaceChildren();
    return;
  }
  const [row, column] = [Math.floor(patch / model.grid), patch % model.grid];
  $("patch-told").textContent = `Row ${row}, column ${column} is held up by`;
  const ranked = (erasure?.maps ?? [])
    .map((map, k) => ({ k, share: map[row][column] }))
    .filter(({ k, share }) => share !== null && programs.isActive(program, k))
    .sort((a, b) => b.share - a.share)
    .slice(0, 6);
  $("ranking").replaceChildren(...ranked.map((entry) => rankedToken(entry, ranked[0].share)));
}

function rankedToken({ k, share }, top) {
  const item = document.createElement("li");
  const chip = makeChip(state.program.codes[k], k);
  chip.setAttribute("aria-label", `Token ${k}, code ${state.program.codes[k]}`);
  chip.addEventListener("click", () => chipAt(k).focus());
  const token = document.createElement("span");
  token.className = "quiet";
  token.textContent = `token ${k}`;
  const bar = document.createElement("span");
  bar.className = "bar";
  bar.style.setProperty("--share", top > 0 ? share / top : 0);
  const value = document.createElement("span");
  value.className = "number";
  value.textContent = number(share);
  item.append(chip, token, bar, value);
  return item;
}

function showSecond() {
  const { second, token } = state;
  $("second-image").hidden = !second;
  if (!second) return;
  $("second-image").src = drawing.pngAddress(second.image);
  $("second-told").textContent =
    token === null ? "Choose a token above, then a code here." : `Click a code to put it at token ${token}.`;
}

function drawDonor() {
  const { program } = state.second;
  const chips = program.codes.slice(0, program.length).map((code, k) => {
    const chip = makeChip(code, k);
    chip.setAttribute("aria-label", `Transplant code ${code}`);
    chip.addEventListener("click", () => {
      if (state.token === null) {
        complain(new Refusal("No token is chosen. Choose one of the program first."));
        return;
      }
      edit(programs.replaceCode(state.program, state.token, code));
    });
    return chip;
  });
  $("donor-chips").replaceChildren(...chips);
}

async function openSecond(image) {
  const made = await ask("encode", { image });
  state.second = { image: made.image, program: programs.fromWire(made.program) };
  drawDonor();
  show();
}

function showSliders() {
  $("objects-shown").textContent = $("objects").value;
  $("seed-shown").textContent = $("seed").value;
}

function showTheme() {
  const dark = document.documentElement.dataset.theme === "dark";
  $("theme").textContent = dark ? "Light" : "Dark";
}

// Wiring.

const on = (id, event, work) => $(id).addEventListener(event, guarded(work));
let toSecond = false; // where the next picked file goes

function wireSource() {
  const pick = (second) => {
    toSecond = second;
    $("file").value = "";
    $("file").click();
  };
  on("open", "click", () => pick(false));
  on("second-open", "click", () => pick(true));
  on("file", "change", async () => {
    const [file] = $("file").files;
    if (!file) return;
    if (toSecond) await openSecond(await readFile(file));
    else await openFile(file);
  });
  on("scene", "submit", async (event) => {
    event.preventDefault();
    await drawScene(Number($("objects").value), Number($("seed").value));
  });
  for (const id of ["objects", "seed"]) on(id, "input", showSliders);
  on("second-scene", "click", async () => {
    const seed = Number($("seed").value) + 1000;
    const { image } = await ask("scene", { objects: Number($("objects").value), seed });
    await openSecond(image);
  });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener(
    "drop",
    guarded(async (event) => {
      event.preventDefault();
      const [file] = event.dataTransfer.files;
      if (!file) return;
      if (event.target.closest("#second")) await openSecond(await readFile(file));
      else await openFile(file);
    }),
  );
  addEventListener(
    "paste",
    guarded(async (event) => {
      const [file] = event.clipboardData.files;
      if (file) await openFile(file);
    }),
  );
}

function wireProgram() {
  on("length", "input", () => setLength(Number($("length").value), true));
  on("length", "change", () => history.endMerge());
  on("undo", "click", () => travel("undo"));
  on("redo", "click", () => travel("redo"));
  on("reset", "click", () => edit(state.encoded));
  on("click-erase", "click", () => chooseClick(false));
  on("click-select", "click", () => chooseClick(true));
  const position = (event) => {
    const chip = event.target.closest(".chip");
    return chip ? Number(chip.dataset.k) : null;
  };
  on("chips", "pointerover", (event) => {
    if (event.pointerType === "mouse") hover(position(event));
  });
  on("chips", "pointerleave", () => hover(null));
  on("chips", "focusin", (event) => {
    state.token = position(event);
    show();
  });
  on("chips", "click", (event) => {
    const k = position(event);
    if (k === null) return;
    chipAt(k).focus();
    if (event.shiftKey || state.clickSelects) select(k);
    else toggle(k);
  });
  on("chips", "keydown", chipKey);
}

function chooseClick(selects) {
  state.clickSelects = selects;
  show();
}

function hover(k) {
  if (state.hover === k) return;
  state.hover = k;
  showOverlay();
  showToken();
}

function chipKey(event) {
  const k = state.token;
  if (k === null || event.ctrlKey || event.metaKey) return;
  const last = state.program.codes.length - 1;
  const steps = { ArrowLeft: k - 1, ArrowRight: k + 1, Home: 0, End: last };
  if (event.key in steps) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.altKey && by) move(k, by);
    else chipAt(Math.min(Math.max(steps[event.key], 0), last)).focus();
  } else if (event.key === "Enter" || event.key === "Delete" || event.key === "Backspace") toggle(k);
  else if (event.key === " ") select(k);
  else if (event.key === "e") {
    $("code").focus();
    $("code").select();
  } else if (event.key === "w") guarded(openCode)(state.program.codes[k]);
  else if (event.key === "s") swapPair();
  else if (event.key === "[") setLength(state.program.length - 1);
  else if (event.key === "]") setLength(state.program.length + 1);
  else return;
  event.preventDefault();
}

function wirePanels() {
  on("edit", "submit", (event) => {
    event.preventDefault();
    const code = $("code").valueAsNumber;
    if (!Number.isInteger(code)) throw new Refusal("This is no code. Type a whole number.");
    edit(programs.replaceCode(state.program, state.token, code));
    chipAt(state.token).focus();
  });
  on("erase", "click", () => toggle(state.token));
  on("earlier", "click", () => move(state.token, -1));
  on("later", "click", () => move(state.token, 1));
  on("elsewhere", "click", () => openCode(state.program.codes[state.token]));
  on("swap", "click", swapPair);
  on("unpair", "click", letGo);
  on("code-page", "close", () => {
    state.codePage = null;
    writeAddress(state);
  });
}

function swapPair() {
  if (state.pair.length === 2) edit(programs.swap(state.program, ...state.pair));
}

function letGo() {
  Object.assign(state, { pair: [], patch: null, synergy: null });
  show();
}

function wirePictures() {
  const choose = (patch) => {
    state.patch = state.cursor = patch;
    show();
    tell($("patch-told").textContent);
  };
  on("patches", "click", (event) => {
    if (!state.image) return;
    const { grid } = state.model;
    const box = $("patches").getBoundingClientRect();
    const along = (at, start, size) =>
      Math.min(Math.max(Math.floor(((at - start) / size) * grid), 0), grid - 1);
    const row = along(event.clientY, box.top, box.height);
    choose(row * grid + along(event.clientX, box.left, box.width));
  });
  on("patches", "keydown", (event) => {
    const { grid } = state.model;
    const [row, column] = [Math.floor(state.cursor / grid), state.cursor % grid];
    const steps = {
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
    };
    if (event.key in steps) {
      const [toRow, toColumn] = steps[event.key].map((at) => Math.min(Math.max(at, 0), grid - 1));
      state.cursor = toRow * grid + toColumn;
      state.patch = null;
      tell(`Row ${toRow}, column ${toColumn}`);
      show();
    } else if (event.key === "Enter" || event.key === " ") choose(state.cursor);
    else return;
    event.preventDefault();
  });
  for (const event of ["focus", "blur"]) on("patches", event, showCursor);
  on("pca", "click", () => {
    state.view = "pca";
    show();
    return showFields();
  });
  on("clusters", "click", () => {
    state.view = "clusters";
    show();
    askClusters();
  });
  on("k", "change", () => {
    state.k = Math.min(Math.max(Math.round($("k").valueAsNumber) || 6, 2), 12);
    $("k").value = state.k;
    show();
    askClusters();
  });
}

function wireExports() {
  const stem = () => (state.source?.name ?? "scene").replace(/\.\w+$/, "");
  on("save-program", "click", () => download(`${stem()}.jsonl`, programFile(state.program)));
  on("save-view", "click", async () => {
    const panel = (name, ...ids) => ({ name, layers: ids.map($).filter((each) => !each.hidden) });
    const panels = [
      panel($("image-caption").textContent, "image", "overlay"),
      panel("Preview", "preview"),
      panel("Teacher’s field", "teacher"),
      panel("Interpreted field", "field"),
      panel("Error", "error"),
    ];
    const told = `R² ${$("r2").textContent}, centred ${$("r2-centred").textContent}, length ${$("length-shown").textContent}`;
    download(`${stem()}.png`, await viewPicture({ panels, program: state.program, told }));
  });
  on("show-python", "click", () => {
    $("lines").textContent = pythonLines(state);
    $("python").showModal();
  });
  on("copy", "click", async () => {
    await navigator.clipboard.writeText($("lines").textContent);
    tell("Copied.");
  });
}

function wireRest() {
  on("dismiss", "click", () => ($("message").hidden = true));
  on("keys", "click", () => $("help").showModal());
  on("theme", "click", () => {
    const root = document.documentElement;
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
    showTheme();
  });
  addEventListener("resize", () => state.program && showLength());
  addEventListener("hashchange", guarded(start));
  addEventListener("keydown", (event) => {
    if (event.target.closest("input, dialog") || !state.program) return;
    const key = event.key.toLowerCase();
    const control = event.ctrlKey || event.metaKey;
    if (control && key === "z") travel(event.shiftKey ? "redo" : "undo");
    else if (control && key === "y") travel("redo");
    else if (key === "escape") letGo();
    else return;
    event.preventDefault();
  });
}

function showFacts() {
  const { model } = state;
  const { grid, max_length, codebook_size } = model;
  $("facts").textContent =
    `${model.name} · ${model.image_size} px · ${grid} × ${grid} patches · ` +
    `up to ${max_length} of ${codebook_size} codes · teacher ${model.teacher}`;
  $("objects").min = model.min_objects;
  $("objects").max = model.max_objects;
}

/** Show what the address asks for, or a first scene. */
async function start() {
  const wanted = readAddress();
  const kept = wanted.name === undefined ? null : keptImage(wanted.name);
  if (wanted.scene) await drawScene(wanted.scene.objects, wanted.scene.seed, wanted);
  else if (kept) await openImage(kept, { name: wanted.name }, wanted);
  else if (wanted.codes) {
    const { fingerprint, codebook_size } = state.model;
    const { codes, length, erased } = wanted;
    Object.assign(state, { source: null, image: null, predicted: null });
    begin({ codes, length, erased, codebook_size, model: fingerprint }, wanted);
  } else await drawScene(Number($("objects").value), Number($("seed").value));
  if (wanted.code !== undefined) await openCode(wanted.code);
}

async function main() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = localStorage.getItem("theme") ?? (dark ? "dark" : "light");
  showTheme();
  wireSource();
  wireProgram();
  wirePanels();
  wirePictures();
  wireExports();
  wireRest();
  showSliders();
  state.model = await ask("model");
  showFacts();
  await start();
}

guarded(main)();
