// The state of the page.

import { History } from "./program.js";

export const $ = (id) => document.getElementById(id);

export const history = new History();

export const touch = matchMedia("(pointer: coarse)").matches;

export const state = {
  model: null,
  source: null, //    { scene }, { name } or { name, sample }; null for a program without its image
  image: null, //     the model's square, a PNG in base64
  encoded: null, //   the program before edits
  predicted: null, // its length, if the model predicted it
  expected: null, //  cosine that a rate head expects at every length
  program: null, //   the program as it is shown
  accepted: null, //  the last one that the server accepted
  result: null, //    its field, preview and scores
  curve: null,
  erasure: null,
  synergy: null,
  clusters: null,
  view: "pca", //     or "clusters"
  k: 6, //            how many clusters
  token: null, //     the current position
  hover: null, //     the position under the pointer
  pair: [],
  patch: null, //     row * grid + column
  cursor: 0, //       the patch that the arrow keys move
  codePage: null,
  second: null, //    { image, program }
  clickSelects: touch, // touch screens cannot hover
};
