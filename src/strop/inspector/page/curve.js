// R² centred and cosine by length. The slider below the plot is its x axis.

const THUMB = 22; // width of the slider's handle, whose centre does not reach the ends
const LEFT = 34; // width of the tick labels; the slider starts here too
const HEIGHT = 150;
const SVG = "http://www.w3.org/2000/svg";

function add(parent, kind, attributes, text) {
  const element = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

/** Lines of `curve`, the cosine that is expected, the chosen length and the predicted one. */
export function drawCurve(svg, { curve, expected, length, predicted, capacity, scores }) {
  const width = svg.clientWidth || 600;
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  svg.replaceChildren();
  const share = (at) => (at - 1) / Math.max(capacity - 1, 1);
  const x = (at) => LEFT + THUMB / 2 + share(at) * (width - LEFT - THUMB);
  const known = curve ? [...curve.cosine, ...curve.r2_centred].filter((v) => v !== null) : [];
  const top = Math.min(1, Math.max(...known, 0.1) + 0.08);
  // Very negative values are clipped to keep the plot readable.
  const bottom = Math.max(-0.5, Math.min(0, ...known));
  const high = (value) => (Math.max(value, bottom) - bottom) / (top - bottom);
  const y = (value) => 22 + (1 - high(value)) * (HEIGHT - 32);

  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    if (tick < bottom || tick > top) continue;
    add(svg, "line", { x1: LEFT, x2: width, y1: y(tick), y2: y(tick), class: "rule" });
    add(svg, "text", { x: 0, y: y(tick) + 4, class: "tick" }, tick.toString());
  }
  if (predicted) {
    const at = x(predicted);
    const [side, anchor] = at > width / 2 ? [-5, "end"] : [5, "start"];
    add(svg, "line", { x1: at, x2: at, y1: 0, y2: HEIGHT, class: "predicted" });
    add(svg, "text", { x: at + side, y: 9, class: "tick", "text-anchor": anchor }, `predicted ${predicted}`);
  }
  const line = (values, name) => {
    const points = values
      .map((value, at) => (value === null ? null : `${x(at + 1).toFixed(1)},${y(value).toFixed(1)}`))
      .filter(Boolean);
    add(svg, "polyline", { points: points.join(" "), class: name });
  };
  if (!curve) return;
  if (expected) line(expected, "expected");
  for (const [name, label] of [["cosine", "cosine"], ["r2_centred", "R² centred"]]) {
    line(curve[name], name);
    const last = curve[name].findLast((value) => value !== null);
    if (last !== undefined) {
      const below = name === "r2_centred" ? 15 : -7; // the centred R² is hardly ever higher
      add(svg, "text", { x: width, y: y(last) + below, class: `tick ${name}`, "text-anchor": "end" }, label);
    }
    const here = scores?.[name];
    if (here !== undefined) add(svg, "circle", { cx: x(length), cy: y(here), r: 5, class: name });
  }
}
