// Requests about the shown program. Late responses are dropped.

import { RequestError, request, latest, debounced } from "./api.js";
import * as programs from "./program.js";
import { showError, errorCount, hideError, show, showFields, announce } from "./show.js";
import { $, history, state } from "./state.js";

const PAUSE = 250; // milliseconds without a change before studies are requested, so that dragging sends none

/** `work` as an event handler that shows errors. */
export const guarded =
  (work) =>
  async (...args) => {
    try {
      return await work(...args);
    } catch (error) {
      if (!(error instanceof RequestError)) console.error(error);
      showError(error);
    }
  };

/** What to search for: by "image", "region" or "codes". */
export function searchRequest(by, codes) {
  const { image, program, encoded, patch, model } = state;
  if (by === "codes") return { codes };
  if (by === "region") {
    if (!image || patch === null) {
      throw new RequestError("No patch is selected. Click the image on the Inspect tab first.");
    }
    const side = model.image_size / model.grid;
    const [row, column] = [Math.floor(patch / model.grid), patch % model.grid];
    const [top, left] = [row, column].map((at) => Math.max(at - 1, 0));
    const [bottom, right] = [row, column].map((at) => Math.min(at + 2, model.grid));
    const region = [left, top, right - left, bottom - top].map((patches) => patches * side);
    return { image, region, codes };
  }
  const unchanged = `${program.codes}` === `${encoded.codes}`;
  if (!image || !unchanged) return { program: programs.toWire(program), codes };
  return { image, without: program.erased.filter((k) => k < program.length), codes };
}

/** After every change of the program. */
export function changed() {
  requestField();
  requestStudies();
  show();
}

/** Request field, preview and scores. A program that the server refuses is undone. */
const requestField = latest(async () => {
  const { program, image } = state;
  const before = errorCount;
  try {
    state.result = await request("interpret", { program: programs.toWire(program), image });
    state.accepted = program;
    // An error shown since the request was sent has another cause.
    if (state.program === program && errorCount === before) hideError();
    await showFields();
    announce(`R² centred ${$("r2-centred").textContent}`);
  } catch (error) {
    showError(error);
    if (state.program === program) {
      state.program = state.accepted;
      history.past.pop();
      requestStudies();
    }
  }
  show();
});

/** A study of the program. `body` returns what else to send, or a false value to send nothing. */
const study = (path, body, keep) =>
  latest(
    guarded(async () => {
      const { program } = state;
      const extra = body();
      if (!extra) return;
      const response = await request(path, { program: programs.toWire(program), ...extra });
      if (state.program !== program) return;
      keep(response, program);
      show();
    }),
  );

const requestErasure = study(
  "erasure",
  () => ({}),
  (response) => (state.erasure = response),
);

const requestCurve = study(
  "curve",
  () => {
    const known = state.curve?.of === programs.withoutLength(state.program);
    return state.image && !known && { image: state.image };
  },
  (response, program) => (state.curve = { ...response, of: programs.withoutLength(program) }),
);

export const requestSynergy = study(
  "synergy",
  () => {
    const [first, second] = state.pair;
    const active = state.pair.filter((k) => programs.isActive(state.program, k));
    return active.length === 2 && { first, second };
  },
  (response) => (state.synergy = response),
);

export const requestClusters = study(
  "clusters",
  () => state.view === "clusters" && state.image && { image: state.image, k: state.k },
  (response) => {
    state.clusters = response;
    showFields();
  },
);

const requestAll = debounced(() => {
  if (state.program !== state.accepted) {
    requestAll(); // the response for its field is still missing
    return;
  }
  requestErasure();
  requestCurve();
  requestSynergy();
  requestClusters();
}, PAUSE);

function requestStudies() {
  state.erasure = null;
  state.synergy = null;
  requestAll();
}
