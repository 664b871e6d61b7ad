// Shows the state. Nothing here changes the state or sends requests.

import { writeAddress } from "./address.js";
import { drawChips, makeChip } from "./chips.js";
import { drawCurve } from "./curve.js";
import * as drawing from "./drawing.js";
import * as programs from "./program.js";
import { $, history, state, touch } from "./state.js";

export const chipAt = (k) => $("chips").children[k];

const press = touch ? "Tap" : "Click";

const number = (value, digits = 3) =>
  value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−");

/** Number of errors shown so far. */
export let errorCount = 0;

/** Show the message of an error. */
export function showError(error) {
  errorCount += 1;
  $("sentence").textContent = error.message;
  $("message").hidden = false;
}

export const hideError = () => ($("message").hidden = true);

/** Announce a change to screen readers. */
export const announce = (text) => ($("status").textContent = text);

export function show() {
  const { program } = state;
  if (!program) return;
  const { erasure, token, pair } = state;
  drawChips($("chips"), program, { scores: erasure?.scores, token, pair });
  showScores();
  showLength();
  showOverlay();
  showToken();
  showPair();
  showPatch();
  showSecond();
  showChoices();
  writeAddress(state);
}

export function showImage() {
  const { image, source } = state;
  $("image").hidden = !image;
  $("no-image").hidden = Boolean(image);
  if (!image) return;
  $("image").src = drawing.pngAddress(image);
  const { scene, name } = source;
  $("image").alt = scene ? `Rendered scene of ${scene.objects} objects` : name;
}

function showScores() {
  const { program, result } = state;
  $("r2").textContent = number(result?.scores?.r2);
  $("r2-centred").textContent = number(result?.scores?.r2_centred);
  $("cosine").textContent = number(result?.scores?.cosine);
  $("floor").textContent = number(result?.scores?.floor, 2);
  $("length-shown").textContent = `${program.length} of ${program.codes.length}`;
  $("bits").textContent = Math.round(program.length * Math.log2(program.codebook_size));
}

export function showLength() {
  const { program, predicted, curve, accepted, result } = state;
  const capacity = program.codes.length;
  const suffix = predicted ? `, predicted ${predicted}` : "";
  $("length").max = capacity;
  $("length").value = program.length;
  $("length").setAttribute("aria-valuetext", `${program.length} of ${capacity} codes${suffix}`);
  const scores = accepted === program ? result?.scores : null;
  const { length } = program;
  const expected = expectedNow();
  drawCurve($("curve"), { curve, expected, length, predicted, capacity, scores });
  $("quality-row").hidden = !expected;
  if (!expected) return;
  $("quality").min = expected[0].toFixed(3);
  $("quality").max = expected.at(-1).toFixed(3);
  if (document.activeElement !== $("quality")) $("quality").value = expected[length - 1];
  $("quality-shown").textContent = `expected cosine ${number(expected[length - 1])}`;
}

/** What the rate head expects, unless edits have made it void. */
function expectedNow() {
  const { program, encoded, expected } = state;
  return programs.withoutLength(program) === programs.withoutLength(encoded) ? expected : null;
}

function showChoices() {
  const pressed = (id, is) => $(id).setAttribute("aria-pressed", is);
  $("undo").disabled = !history.past.length;
  $("redo").disabled = !history.future.length;
  $("reset").disabled = programs.same(state.program, state.encoded);
  pressed("click-erase", !state.clickSelects);
  pressed("click-select", state.clickSelects);
  pressed("pca", state.view === "pca");
  pressed("clusters", state.view === "clusters");
  $("clusters").disabled = !state.image;
  $("k-label").hidden = state.view !== "clusters";
  $("k").value = state.k;
}

/** Preview, fields and error of the last result. */
export async function showFields() {
  const { result, clusters, view } = state;
  if (!result) return;
  $("preview").hidden = !result.preview;
  if (result.preview) $("preview").src = drawing.pngAddress(result.preview);
  $("preview-caption").textContent = result.preview ? "Preview" : "No decoder, no preview";
  if (result.error) {
    const top = drawing.largest(result.error);
    drawing.paintHeat($("error"), result.error, top);
    $("error-shown").textContent = `up to ${number(top, 2)}`;
  } else {
    drawing.clear($("error"));
    $("error-shown").textContent = "";
  }
  if (view === "clusters" && clusters) {
    drawing.paintClusters($("teacher"), clusters.teacher);
    drawing.paintClusters($("field"), clusters.interpreted);
    return;
  }
  await drawing.paintPng($("field"), result.field);
  if (result.teacher) await drawing.paintPng($("teacher"), result.teacher);
  else drawing.clear($("teacher"));
}

/** The map over the image: the synergy of a pair, or the erasure map of a token. */
function shownMap() {
  const { pair, synergy, hover, erasure, program } = state;
  const token = hover ?? state.token;
  if (pair.length === 2 && synergy && (hover === null || pair.includes(hover))) {
    return { rows: synergy.map, name: `Synergy of ${pair[0]} and ${pair[1]}`, diverging: true };
  }
  if (token === null || !programs.isActive(program, token)) return null;
  const rows = erasure?.maps[token];
  if (!rows || rows[0][0] === null) return null;
  return { rows, name: `Erasure map of token ${token}`, diverging: false };
}

export function showOverlay() {
  const shown = shownMap();
  const canvas = $("overlay");
  canvas.hidden = $("legend").hidden = !shown;
  canvas.dataset.map = shown?.name ?? "";
  $("image-caption").textContent = shown?.name ?? state.source?.name ?? "Image";
  if (shown) {
    const top = drawing.largest(shown.rows);
    if (shown.diverging) drawing.paintDiverging(canvas, shown.rows, top);
    else drawing.paintHeat(canvas, shown.rows, top, true);
    drawing.paintScale($("scale"), shown.diverging);
    const end = top.toPrecision(2);
    $("low").textContent = shown.diverging ? `−${end}` : "0";
    $("high").textContent = end;
  }
  showCursor();
}

/** The frame around the selected patch, or around the cursor of the arrow keys. */
export function showCursor() {
  const { grid } = state.model;
  const chosen = state.patch ?? (document.activeElement === $("patches") ? state.cursor : null);
  const frame = $("frame");
  frame.hidden = chosen === null;
  frame.style.setProperty("--column", (chosen % grid) / grid);
  frame.style.setProperty("--row", Math.floor(chosen / grid) / grid);
  frame.style.setProperty("--size", 1 / grid);
}

export function showToken() {
  const { program, token } = state;
  const shown = state.hover ?? token;
  $("edit").hidden = token === null;
  $("token-title").textContent = shown === null ? "Token" : `Token ${shown}`;
  if (shown !== null) $("token-text").textContent = describe(shown);
  if (token === null) return;
  if (document.activeElement !== $("code")) $("code").value = program.codes[token];
  $("erase").textContent = programs.isErased(program, token) ? "Restore" : "Erase";
  $("erase").disabled = token >= program.length;
  $("earlier").disabled = token === 0 || token >= program.length;
  $("later").disabled = token >= program.length - 1;
}

function describe(k) {
  const { program, erasure } = state;
  const code = `Code ${program.codes[k]}`;
  if (k >= program.length) return `${code}, past the length. ${press} it to extend the program.`;
  if (programs.isErased(program, k)) return `${code}, erased. ${press} it to restore it.`;
  const score = erasure?.scores[k];
  if (score === undefined) return code;
  if (score === null) return `${code}, the only active token.`;
  const better = erasure.scores.filter((other) => other > score).length;
  return `${code}, erasure changes the field by ${number(score)}, rank ${better + 1} of ${program.length}.`;
}

function showPair() {
  const { pair, synergy, program } = state;
  const [first, second] = pair;
  $("pair-tools").hidden = second === undefined;
  if (first === undefined) {
    $("pair-text").textContent = touch
      ? "Choose “selects” and tap two codes to see their synergy."
      : "Shift-click two codes, or press Space on them, to see their synergy.";
  } else if (second === undefined) {
    $("pair-text").textContent = `Token ${first} is selected. Select another.`;
  } else {
    const active = pair.every((k) => programs.isActive(program, k));
    const result = synergy ? `synergy ${number(synergy.score, 4)}.` : active ? "…" : "both must be active.";
    $("pair-text").textContent = `Tokens ${first} and ${second}: ${result}`;
  }
}

function showPatch() {
  const { patch, erasure, program, model } = state;
  if (patch === null) {
    $("patch-text").textContent = `${press} the image to rank tokens by their effect on a patch.`;
    $("ranking").replaceChildren();
    return;
  }
  const [row, column] = [Math.floor(patch / model.grid), patch % model.grid];
  $("patch-text").textContent = `Row ${row}, column ${column}: tokens with the largest effect`;
  const ranked = (erasure?.maps ?? [])
    .map((map, k) => ({ k, effect: map[row][column] }))
    .filter(({ k, effect }) => effect !== null && programs.isActive(program, k))
    .sort((a, b) => b.effect - a.effect)
    .slice(0, 6);
  $("ranking").replaceChildren(...ranked.map((entry) => rankedToken(entry, ranked[0].effect)));
}

function rankedToken({ k, effect }, top) {
  const code = state.program.codes[k];
  const chip = makeChip(code, k);
  chip.setAttribute("aria-label", `Token ${k}, code ${code}`);
  const bar = labelled("bar", "");
  bar.style.setProperty("--share", top > 0 ? effect / top : 0);
  const item = document.createElement("li");
  item.append(chip, labelled("quiet", `token ${k}`), bar, labelled("number", number(effect)));
  return item;
}

function labelled(kind, text, tag = "span") {
  const span = document.createElement(tag);
  span.className = kind;
  span.textContent = text;
  return span;
}

function showSecond() {
  const { second, token } = state;
  if (!second) return;
  $("second-text").textContent =
    token === null
      ? "Select a token above, then a code here."
      : `${press} a code to copy it to token ${token}.`;
}

/** Show the second image and its codes. */
export function showDonor() {
  const { image, program } = state.second;
  $("second-image").hidden = false;
  $("second-image").src = drawing.pngAddress(image);
  const chips = program.codes.slice(0, program.length).map(makeChip);
  for (const chip of chips) chip.setAttribute("aria-label", `Transplant code ${chip.textContent}`);
  $("donor-chips").replaceChildren(...chips);
}

/** Mark the chip that a dragged one would be dropped on. */
export function showTarget(target) {
  for (const chip of $("chips").children) chip.classList.toggle("target", chip === target);
}

/** Show "inspect" or "search". */
export function showTab(tab) {
  for (const each of ["inspect", "search"]) {
    $(each).hidden = each !== tab;
    $(`tab-${each}`).setAttribute("aria-selected", each === tab);
  }
  $("query-image").hidden = !state.image;
  if (state.image) $("query-image").src = drawing.pngAddress(state.image);
  if (tab === "inspect") show(); // the width of the curve is known again
}

export function showHits({ hits, total, unindexed }) {
  const rest = unindexed ? ` ${unindexed} rows are not in the index: run strop index.` : "";
  $("found").textContent = `${hits.length} of ${total} images.${rest}`;
  $("hits").replaceChildren(...hits.map(hitItem));
}

function hitItem({ row, key, length, score, region, thumbnail }) {
  const square = picture(key, thumbnail, "button");
  Object.assign(square, { type: "button", value: row, title: `Inspect ${key}` });
  if (region) {
    const frame = labelled("region", "");
    ["left", "top", "width", "height"].forEach((side, at) => (frame.style[side] = `${100 * region[at]}%`));
    square.append(frame);
  }
  const item = document.createElement("li");
  const about = score === null ? `${length} codes` : `${number(score, 2)}, ${length} codes`;
  item.append(square, labelled("", `${key.split("/").at(-1)}: ${about}`));
  return item;
}

/** A square with a thumbnail. */
function picture(name, thumbnail, tag = "div") {
  const image = new Image();
  image.src = `data:image/webp;base64,${thumbnail}`;
  image.alt = name;
  const square = labelled("square", "", tag);
  square.append(image);
  return square;
}

export function showCodePage(page) {
  const { code, count, encoded, total, appearances } = page;
  const times = count === 1 ? "once" : `${count} times`;
  const still = encoded < total ? ` (${total - encoded} more are being encoded)` : "";
  const some = count > appearances.length ? ` The first ${appearances.length}:` : "";
  $("code-title").textContent = `Code ${code}`;
  $("code-text").textContent = `Active ${times} in ${encoded} images${still}.${some}`;
  $("appearances").replaceChildren(...appearances.map(appearance));
  $("code-page").showModal();
}

function appearance({ name, thumbnail, position, length, map }) {
  const canvas = document.createElement("canvas");
  canvas.ariaHidden = "true";
  drawing.paintHeat(canvas, map, drawing.largest(map), true);
  const square = picture(name, thumbnail);
  square.append(canvas);
  const item = document.createElement("li");
  item.append(square, labelled("", `${name}, token ${position} of ${length}`));
  return item;
}

export function showFacts() {
  const { model } = state;
  const { name, image_size, grid, max_length, codebook_size, teacher, samples } = model;
  $("facts").textContent =
    `${name} · ${image_size} px · ${grid} × ${grid} patches · ` +
    `up to ${max_length} of ${codebook_size} codes · teacher ${teacher}`;
  $("objects").min = model.min_objects;
  $("objects").max = model.max_objects;
  for (const id of ["scene", "second-scene"]) $(id).hidden = !model.sees_scenes;
  for (const id of ["samples", "second-sample"]) $(id).hidden = model.sees_scenes;
  for (const [at, sample] of samples.entries()) {
    const button = labelled("", sample.replace(/\.\w+$/, ""), "button");
    Object.assign(button, { type: "button", value: at });
    $("samples").append(button);
  }
  $("tabs").hidden = !model.store;
  if (touch) for (const each of document.querySelectorAll("[data-touch]")) each.textContent = each.dataset.touch;
}

export function showSliders() {
  $("objects-shown").textContent = $("objects").value;
  $("seed-shown").textContent = $("seed").value;
}
