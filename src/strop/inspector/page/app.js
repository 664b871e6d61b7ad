// Connects the controls of the page to actions.

import * as actions from "./actions.js";
import { request } from "./api.js";
import { download, programFile, pythonLines, viewPicture } from "./exports.js";
import { guarded, searchRequest } from "./requests.js";
import {
  chipAt,
  hideError,
  show,
  showCursor,
  showFacts,
  showHits,
  showLength,
  showOverlay,
  showSliders,
  showTab,
  showTarget,
  showToken,
  announce,
} from "./show.js";
import { $, history, state } from "./state.js";

const on = (id, event, work) => $(id).addEventListener(event, guarded(work));
const onPage = (event, work) => addEventListener(event, guarded(work));

function wireSource() {
  let picked; // what happens to the next picked file
  const pick = (then) => {
    picked = then;
    $("file").value = "";
    $("file").click();
  };
  on("open", "click", () => pick(actions.openFile));
  on("second-open", "click", () => pick(actions.openSecondFile));
  on("file", "change", () => picked($("file").files[0]));
  const objects = () => Number($("objects").value);
  const seed = () => Number($("seed").value);
  on("scene", "submit", (event) => {
    event.preventDefault();
    return actions.drawScene(objects(), seed());
  });
  on("second-scene", "click", () => actions.drawSecond(objects(), seed() + 1000));
  for (const id of ["objects", "seed"]) on(id, "input", showSliders);
  on("samples", "click", ({ target }) => target.value && actions.openSample(Number(target.value)));
  on("second-sample", "click", actions.openSecondSample);
  onPage("dragover", (event) => event.preventDefault());
  onPage("drop", (event) => {
    event.preventDefault();
    const [file] = event.dataTransfer.files;
    if (!file) return null;
    return event.target.closest("#second") ? actions.openSecondFile(file) : actions.openFile(file);
  });
  onPage("paste", (event) => {
    const [file] = event.clipboardData.files;
    return file && actions.openFile(file);
  });
}

/** The position of the chip an event is on. */
function position(event) {
  const chip = event.target.closest(".chip");
  return chip ? Number(chip.dataset.k) : null;
}

function wireProgram() {
  on("length", "input", () => actions.setLength(Number($("length").value), true));
  on("length", "change", () => history.endMerge());
  on("quality", "input", () => actions.setQuality($("quality").valueAsNumber));
  on("quality", "change", () => history.endMerge());
  on("undo", "click", () => actions.travel("undo"));
  on("redo", "click", () => actions.travel("redo"));
  on("reset", "click", () => actions.edit(state.encoded));
  const choose = (selects) => {
    state.clickSelects = selects;
    show();
  };
  on("click-erase", "click", () => choose(false));
  on("click-select", "click", () => choose(true));
  const hover = (k) => {
    if (state.hover === k) return;
    state.hover = k;
    showOverlay();
    showToken();
  };
  on("chips", "pointerover", (event) => event.pointerType === "mouse" && hover(position(event)));
  on("chips", "pointerleave", () => hover(null));
  on("chips", "focusin", (event) => {
    state.token = position(event);
    show();
  });
  on("chips", "click", (event) => {
    const k = position(event);
    if (k === null) return;
    chipAt(k).focus();
    if (event.shiftKey || state.clickSelects) actions.select(k);
    else actions.toggle(k);
  });
  on("chips", "keydown", chipKey);
}

/** A mouse drags active tokens to other positions. */
function wireDragging() {
  let start = null; // { k, x, y } of the pressed token
  let target = null;
  on("chips", "pointerdown", ({ target: pressed, clientX: x, clientY: y, pointerType, button }) => {
    const k = position({ target: pressed });
    if (pointerType !== "touch" && button === 0 && k < state.program.length) start = k === null ? null : { k, x, y };
  });
  onPage("pointermove", ({ clientX, clientY }) => {
    if (start === null || Math.hypot(clientX - start.x, clientY - start.y) < 6) return;
    const chip = document.elementFromPoint(clientX, clientY)?.closest("#chips .chip:not(.cut)") ?? null;
    target = chip && Number(chip.dataset.k) !== start.k ? chip : null;
    showTarget(target);
  });
  onPage("pointerup", () => {
    if (start !== null && target !== null) actions.dragTo(start.k, Number(target.dataset.k));
    start = target = null;
    showTarget(null);
  });
}

function wireSearch() {
  for (const tab of ["inspect", "search"]) on(`tab-${tab}`, "click", () => showTab(tab));
  on("query", "submit", async (event) => {
    event.preventDefault();
    showHits(await request("search", searchRequest($("query").elements.by.value, $("expression").value)));
  });
  on("hits", "click", async (event) => {
    const found = event.target.closest("button");
    if (!found) return;
    await actions.openRow(Number(found.value));
    showTab("inspect");
  });
}

function chipKey(event) {
  if (event.ctrlKey || event.metaKey) return;
  const { token, program } = state;
  const last = program.codes.length - 1;
  const step = (to) => chipAt(Math.min(Math.max(to, 0), last)).focus();
  const editCode = () => {
    $("code").focus();
    $("code").select();
  };
  const keys = {
    ArrowLeft: () => (event.altKey ? actions.move(token, -1) : step(token - 1)),
    ArrowRight: () => (event.altKey ? actions.move(token, 1) : step(token + 1)),
    Home: () => step(0),
    End: () => step(last),
    Enter: () => actions.toggle(token),
    Delete: () => actions.toggle(token),
    " ": () => actions.select(token),
    e: editCode,
    s: actions.swapPair,
    w: () => actions.openCode(program.codes[token]),
    "[": () => actions.setLength(program.length - 1),
    "]": () => actions.setLength(program.length + 1),
  };
  if (!(event.key in keys)) return null;
  event.preventDefault();
  return keys[event.key]();
}

function wirePanels() {
  on("edit", "submit", (event) => {
    event.preventDefault();
    actions.setCode($("code").valueAsNumber);
    chipAt(state.token).focus();
  });
  on("erase", "click", () => actions.toggle(state.token));
  on("earlier", "click", () => actions.move(state.token, -1));
  on("later", "click", () => actions.move(state.token, 1));
  on("elsewhere", "click", () => actions.openCode(state.program.codes[state.token]));
  on("swap", "click", actions.swapPair);
  on("unpair", "click", actions.clearSelection);
  on("ranking", "click", (event) => chipAt(position(event))?.focus());
  on("donor-chips", "click", (event) => {
    const k = position(event);
    if (k !== null) actions.setCode(state.second.program.codes[k]);
  });
  on("code-page", "close", actions.closeCode);
}

function wirePictures() {
  const within = (at) => Math.min(Math.max(at, 0), state.model.grid - 1);
  on("patches", "click", (event) => {
    if (!state.image) return;
    const { grid } = state.model;
    const box = $("patches").getBoundingClientRect();
    const row = within(Math.floor(((event.clientY - box.top) / box.height) * grid));
    const column = within(Math.floor(((event.clientX - box.left) / box.width) * grid));
    actions.choosePatch(row * grid + column);
  });
  on("patches", "keydown", (event) => {
    const { grid } = state.model;
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (event.key === "Enter" || event.key === " ") actions.choosePatch(state.cursor);
    else if (event.key in steps) {
      const [down, right] = steps[event.key];
      const row = within(Math.floor(state.cursor / grid) + down);
      const column = within((state.cursor % grid) + right);
      Object.assign(state, { cursor: row * grid + column, patch: null });
      show();
      announce(`Row ${row}, column ${column}`);
    } else return;
    event.preventDefault();
  });
  for (const event of ["focus", "blur"]) on("patches", event, showCursor);
  on("pca", "click", () => actions.chooseView("pca"));
  on("clusters", "click", () => actions.chooseView("clusters"));
  on("k", "change", () => actions.chooseK($("k").valueAsNumber));
}

function wireExports() {
  const stem = () => (state.source?.name ?? "program").replace(/\.\w+$/, "");
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
    const [r2, centred, length] = ["r2", "r2-centred", "length-shown"].map((id) => $(id).textContent);
    const caption = `R² ${r2}, centred ${centred}, length ${length}`;
    download(`${stem()}.png`, await viewPicture({ panels, program: state.program, caption }));
  });
  on("show-python", "click", () => {
    $("lines").textContent = pythonLines(state);
    $("python").showModal();
  });
  on("copy", "click", async () => {
    await navigator.clipboard.writeText($("lines").textContent);
    announce("Copied.");
  });
}

function wireRest() {
  on("dismiss", "click", hideError);
  // A message is about what was done before.
  onPage("pointerdown", (event) => event.target.closest("#message") || hideError());
  on("keys", "click", () => $("help").showModal());
  onPage("resize", () => state.program && showLength());
  onPage("hashchange", actions.start);
  onPage("keydown", (event) => {
    if (event.target.closest("input, dialog")) return;
    const key = event.key.toLowerCase();
    const control = event.ctrlKey || event.metaKey;
    if (control && key === "z") actions.travel(event.shiftKey ? "redo" : "undo");
    else if (control && key === "y") actions.travel("redo");
    else if (key === "escape") actions.clearSelection();
    else return;
    event.preventDefault();
  });
}

guarded(async () => {
  state.model = await request("model");
  showFacts();
  showSliders();
  wireSource();
  wireProgram();
  wireDragging();
  wireSearch();
  wirePanels();
  wirePictures();
  wireExports();
  wireRest();
  await actions.start();
})();
