// What a visitor can do.

import { keepImage, keptImage, readAddress, writeAddress } from "./address.js";
import { Refusal, ask } from "./api.js";
import * as programs from "./program.js";
import { askClusters, askSynergy, changed } from "./questions.js";
import {
  chipAt,
  hush,
  show,
  showCodePage,
  showDonor,
  showFields,
  showImage,
  showSliders,
  tell,
} from "./show.js";
import { $, history, state } from "./state.js";

// Images and programs come in.

async function openImage(image, source, wanted = {}) {
  const made = await ask("encode", { image });
  hush();
  Object.assign(state, { source, image: made.image, predicted: made.program.length });
  if (source.name) keepImage(source.name, made.image);
  begin(programs.fromWire(made.program), wanted);
}

export async function drawScene(objects, seed, wanted) {
  const { image, ...scene } = await ask("scene", { objects, seed });
  $("objects").value = objects;
  $("seed").value = seed;
  showSliders();
  await openImage(image, { scene: { ...scene, objects } }, wanted);
}

export async function openFile(file) {
  if (/\.jsonl?$/.test(file.name)) await openProgram(await file.text());
  else await openImage(await contentOf(file), { name: file.name });
}

/** A file in base64, if it is not too large to send. */
function contentOf(file) {
  const most = state.model.max_bytes;
  if (file.size > most) {
    throw new Refusal(`${file.name} is larger than ${most / 2 ** 20} MiB. Choose a smaller one.`);
  }
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result.split(",")[1] ?? "");
    reader.onerror = () => failed(new Refusal("The file cannot be read. Choose another."));
    reader.readAsDataURL(file);
  });
}

async function openProgram(text) {
  let wire;
  try {
    wire = JSON.parse(text.trim().split("\n")[0]);
  } catch {
    throw new Refusal("This file holds no program. Open one that was exported here.");
  }
  await ask("interpret", { program: wire }); // throws if it makes no sense
  hush();
  const program = programs.fromWire(wire);
  if (state.image && `${state.encoded.codes}` === `${program.codes}`) {
    edit(program); // it was written for the image on the screen, which stays to compare with
  } else {
    beginWithoutImage(program);
  }
}

/** Start over with a program as it came; `wanted` are edits and choices from the address. */
function begin(encoded, wanted = {}) {
  history.clear();
  const { codes, length, erased, token = null, pair = [], patch = null, clusters } = wanted;
  const program = codes ? { ...encoded, codes, length, erased } : encoded;
  Object.assign(state, { encoded, program, accepted: encoded, token, pair, patch, hover: null });
  Object.assign(state, { result: null, curve: null, clusters: null });
  if (clusters) Object.assign(state, { view: "clusters", k: clusters });
  showImage();
  changed();
}

function beginWithoutImage(program, wanted) {
  Object.assign(state, { source: null, image: null, predicted: null });
  begin(program, wanted);
}

/** Show what the address asks for, or a first scene. */
export async function start() {
  const wanted = readAddress();
  const kept = wanted.name === undefined ? null : keptImage(wanted.name);
  if (wanted.scene) await drawScene(wanted.scene.objects, wanted.scene.seed, wanted);
  else if (kept) await openImage(kept, { name: wanted.name }, wanted);
  else if (wanted.codes) {
    const { fingerprint: model, codebook_size } = state.model;
    const { codes, length, erased } = wanted;
    beginWithoutImage({ codes, length, erased, codebook_size, model }, wanted);
  } else await drawScene(Number($("objects").value), Number($("seed").value));
  if (wanted.code !== undefined) await openCode(wanted.code);
}

// Edits.

/** Go on with another program. The steps of a drag `merge` into one that can be undone. */
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

/** Erase or restore a token; reach for one that is past the length. */
export function toggle(k) {
  if (k >= state.program.length) setLength(k + 1);
  else edit(programs.toggleErased(state.program, k));
}

export function setCode(code) {
  if (!Number.isInteger(code)) throw new Refusal("This is no code. Type a whole number.");
  if (state.token === null) {
    throw new Refusal("No token is chosen. Choose one of the program first.");
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

export function swapPair() {
  if (state.pair.length === 2) edit(programs.swap(state.program, ...state.pair));
}

// Choices.

/** Take a token into the pair, or out of it. */
export function select(k) {
  const others = state.pair.filter((each) => each !== k);
  state.pair = others.length < state.pair.length ? others : [...others, k].slice(-2);
  state.synergy = null;
  askSynergy();
  show();
}

export function letGo() {
  Object.assign(state, { pair: [], patch: null, synergy: null });
  show();
}

export function choosePatch(patch) {
  state.patch = state.cursor = patch;
  show();
  tell($("patch-told").textContent);
}

export function chooseView(view) {
  state.view = view;
  show();
  if (view === "clusters") askClusters();
  else showFields();
}

export function chooseK(k) {
  state.k = Math.min(Math.max(Math.round(k) || 6, 2), 12);
  chooseView("clusters");
}

export async function openCode(code) {
  const page = await ask(`codes/${code}`);
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
  const made = await ask("encode", { image });
  state.second = { image: made.image, program: programs.fromWire(made.program) };
  showDonor();
  show();
}

export const openSecondFile = async (file) => openSecond(await contentOf(file));

export async function drawSecond(objects, seed) {
  const { image } = await ask("scene", { objects, seed });
  await openSecond(image);
}
