// Questions about the shown program. An answer that comes too late is dropped.

import { Refusal, ask, latest, settled } from "./api.js";
import * as programs from "./program.js";
import { complain, complaints, hush, show, showFields, tell } from "./show.js";
import { $, history, state } from "./state.js";

const PAUSE = 250; // milliseconds without a change before studies are asked for: not while dragging

/** `work` as an event handler: what it throws is shown. */
export const guarded =
  (work) =>
  async (...given) => {
    try {
      return await work(...given);
    } catch (error) {
      if (!(error instanceof Refusal)) console.error(error);
      complain(error);
    }
  };

/** After every change of the program. */
export function changed() {
  askField();
  askStudies();
  show();
}

/** Field, preview and scores. What the server does not understand is taken back. */
const askField = latest(async () => {
  const { program, image } = state;
  const heard = complaints;
  try {
    state.result = await ask("interpret", { program: programs.toWire(program), image });
    state.accepted = program;
    // A complaint that came while the answer was on its way is about something else.
    if (state.program === program && complaints === heard) hush();
    await showFields();
    tell(`R² ${$("r2").textContent}`);
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

/** A study of the program: `body` says what else to send, or nothing if it is not wanted. */
const study = (path, body, keep) =>
  latest(
    guarded(async () => {
      const { program } = state;
      const asked = body();
      if (!asked) return;
      const answer = await ask(path, { program: programs.toWire(program), ...asked });
      if (state.program !== program) return;
      keep(answer, program);
      show();
    }),
  );

const askErasure = study(
  "erasure",
  () => ({}),
  (answer) => (state.erasure = answer),
);

const askCurve = study(
  "curve",
  () => {
    const known = state.curve?.of === programs.withoutLength(state.program);
    return state.image && !known && { image: state.image };
  },
  (answer, program) => (state.curve = { ...answer, of: programs.withoutLength(program) }),
);

export const askSynergy = study(
  "synergy",
  () => {
    const [first, second] = state.pair;
    const active = state.pair.filter((k) => programs.isActive(state.program, k));
    return active.length === 2 && { first, second };
  },
  (answer) => (state.synergy = answer),
);

export const askClusters = study(
  "clusters",
  () => state.view === "clusters" && state.image && { image: state.image, k: state.k },
  (answer) => {
    state.clusters = answer;
    showFields();
  },
);

const askAll = settled(() => {
  if (state.program !== state.accepted) {
    askAll(); // its field has not come back yet
    return;
  }
  askErasure();
  askCurve();
  askSynergy();
  askClusters();
}, PAUSE);

function askStudies() {
  state.erasure = null;
  state.synergy = null;
  askAll();
}
