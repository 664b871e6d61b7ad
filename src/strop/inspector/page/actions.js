// Actions of the user.

import { keepImage, keptImage, readAddress, writeAddress } from "./address.js";
import { RequestError, request } from "./api.js";
import * as programs from "./program.js";
import { requestClusters, requestSynergy, changed } from "./requests.js";
import {
  chipAt,
  hideError,
  show,
  showCodePage,
  showDonor,
  showFields,
  showImage,
  showSliders,
  announce,
} from "./show.js";
import { $, history, state } from "./state.js";

// Open images and programs.

async function openImage(image, source, restored = {}) {
  const encoded = await request("encode", { image });
  hideError();
  const { image: square, program, expected } = encoded;
  Object.assign(state, { source, image: square, predicted: program.length, expected });
  if (source.name) keepImage(source.name, square);
  begin(programs.fromWire(program), restored);
}

export async function openSample(number, restored) {
  const { image, name } = await request(`samples/${number}`);
  await openImage(image, { name, sample: number }, restored);
}

/** Open the image of a row of the store. */
export async function openRow(row) {
  const { image, name } = await request(`rows/${row}`);
  await openImage(image, { name });
}

export async function drawScene(objects, seed, restored) {
  const { image, ...scene } = await request("scene", { objects, seed });
  $("objects").value = objects;
  $("seed").value = seed;
  showSliders();
  await openImage(image, { scene: { ...scene, objects } }, restored);
}

export async function openFile(file) {
  if (/\.jsonl?$/.test(file.name)) await openProgram(await file.text());
  else await openImage(await contentOf(file), { name: file.name });
}

/** A file in base64. Throws if it is larger than the server accepts. */
function contentOf(file) {
  const most = state.model.max_bytes;
  if (file.size > most) {
    throw new RequestError(`${file.name} is larger than ${most / 2 ** 20} MiB. Choose a smaller file.`);
  }
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result.split(",")[1] ?? "");
    reader.onerror = () => failed(new RequestError("The file cannot be read. Choose another file."));
    reader.readAsDataURL(file);
  });
}

async function openProgram(text) {
  let wire;
  try {
    wire = JSON.parse(text.trim().split("\n")[0]);
  } catch {
    throw new RequestError("The file does not hold a program. Open a program that was exported here.");
  }
  await request("interpret", { program: wire }); // throws for an invalid program
  hideError();
  const program = programs.fromWire(wire);
  if (state.image && `${state.encoded.codes}` === `${program.codes}`) {
    edit(program); // it belongs to the image that is shown: keep the image
  } else {
    beginWithoutImage(program);
  }
}

/** Start with a new program. `restored` holds edits and selections from the address. */
function begin(encoded, restored = {}) {
  history.clear();
  const { codes, length, erased, token = null, pair = [], patch = null, clusters } = restored;
  const program = codes ? { ...encoded, codes, length, erased } : encoded;
  Object.assign(state, { encoded, program, accepted: encoded, token, pair, patch, hover: null });
  Object.assign(state, { result: null, curve: null, clusters: null });
  if (clusters) Object.assign(state, { view: "clusters", k: clusters });
  showImage();
  changed();
}

function beginWithoutImage(program, restored) {
  Object.assign(state, { source: null, image: null, predicted: null, expected: null });
  begin(program, restored);
}

/** Restore the state in the address, or show a sample of what the model was trained on. */
export async function start() {
  const restored = readAddress();
  const kept = restored.name === undefined ? null : keptImage(restored.name);
  if (restored.scene) await drawScene(restored.scene.objects, restored.scene.seed, restored);
  else if (restored.sample !== undefined) await openSample(restored.sample, restored);
  else if (kept) await openImage(kept, { name: restored.name }, restored);
  else if (restored.codes) {
    const { fingerprint: model, codebook_size } = state.model;
    const { codes, length, erased } = restored;
    beginWithoutImage({ codes, length, erased, codebook_size, model }, restored);
  } else if (state.model.sees_scenes) await drawScene(Number($("objects").value), Number($("seed").value));
  else await openSample(0);
  if (restored.code !== undefined) await openCode(restored.code);
}

// Edits.

/** Replace the program. With `merge`, the steps of a drag become one undo step. */
export function edit(next, merge = false) {
  if (programs.same(next, state.program)) return;
  history.push(state.program, merge);
  state.program = next;
  changed();
}

/** "undo" or "redo". */
export function travel(direction) {
  const found = history[direction](state.program);
  if (!found) return;
  state.program = found;
  changed();
}

export function setLength(length, merge) {
  const bounded = Math.min(Math.max(length, 1), state.program.codes.length);
  edit(programs.withLength(state.program, bounded), merge);
}

/** The shortest length that is expected to reach a quality. */
export function setQuality(quality) {
  const found = state.expected.findIndex((cosine) => cosine >= quality);
  setLength(found < 0 ? state.expected.length : found + 1, true);
}

/** Erase or restore a token. Past the length, extend the program to it. */
export function toggle(k) {
  if (k >= state.program.length) setLength(k + 1);
  else edit(programs.toggleErased(state.program, k));
}

export function setCode(code) {
  if (!Number.isInteger(code)) throw new RequestError("This is not a code. Type a whole number.");
  if (state.token === null) {
    throw new RequestError("No token is selected. Select a token of the program first.");
  }
  edit(programs.replaceCode(state.program, state.token, code));
}

export function move(k, by) {
  const to = k + by;
  if (to < 0 || Math.max(k, to) >= state.program.length) return;
  state.token = to;
  edit(programs.swap(state.program, k, to));
  chipAt(to).focus();
}

/** Move a dragged token to another active position. */
export function dragTo(from, to) {
  state.token = to;
  edit(programs.moveTo(state.program, from, to));
  chipAt(to).focus();
}

export function swapPair() {
  if (state.pair.length === 2) edit(programs.swap(state.program, ...state.pair));
}

// Selections.

/** Add a token to the pair, or remove it. */
export function select(k) {
  const others = state.pair.filter((each) => each !== k);
  state.pair = others.length < state.pair.length ? others : [...others, k].slice(-2);
  state.synergy = null;
  requestSynergy();
  show();
}

export function clearSelection() {
  hideError();
  Object.assign(state, { pair: [], patch: null, synergy: null });
  show();
}

export function choosePatch(patch) {
  state.patch = state.cursor = patch;
  show();
  announce($("patch-text").textContent);
}

export function chooseView(view) {
  state.view = view;
  show();
  if (view === "clusters") requestClusters();
  else showFields();
}

export function chooseK(k) {
  state.k = Math.min(Math.max(Math.round(k) || 6, 2), 12);
  chooseView("clusters");
}

export async function openCode(code) {
  const page = await request(`codes/${code}`);
  state.codePage = code;
  showCodePage(page);
  writeAddress(state);
}

export function closeCode() {
  state.codePage = null;
  writeAddress(state);
}

// The second image.

export async function openSecond(image) {
  const { image: square, program } = await request("encode", { image });
  state.second = { image: square, program: programs.fromWire(program) };
  showDonor();
  show();
}

export const openSecondFile = async (file) => openSecond(await contentOf(file));

export async function drawSecond(objects, seed) {
  const { image } = await request("scene", { objects, seed });
  await openSecond(image);
}

export async function openSecondSample() {
  const samples = state.model.samples.length;
  const { image } = await request(`samples/${((state.source?.sample ?? 0) + 1) % samples}`);
  await openSecond(image);
}
