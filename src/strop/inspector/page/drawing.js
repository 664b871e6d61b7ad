// Maps, fields and clusters on canvases, one pixel for each location.

const HEAT = [
  [0, 0, 4], [28, 16, 68], [79, 18, 123], [129, 37, 129], [181, 54, 122],
  [229, 80, 100], [251, 135, 97], [254, 194, 135], [252, 253, 191],
];
const DIVERGING = [
  [84, 39, 136], [153, 142, 195], [216, 218, 235], [247, 247, 247],
  [254, 224, 182], [241, 163, 64], [179, 88, 6],
];
const CLUSTERS = [
  [0, 114, 178], [213, 94, 0], [0, 158, 115], [204, 121, 167], [230, 159, 0], [86, 180, 233],
  [60, 60, 60], [240, 228, 66], [140, 86, 75], [148, 163, 120], [120, 94, 168], [200, 200, 200],
];

/** A colour of `stops` at `share` in [0, 1]. */
function between(stops, share) {
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  return stops[low].map((part, c) => part + (at - low) * (stops[low + 1][c] - part));
}

/** Paint rows of cells; `colour` gives [r, g, b] or [r, g, b, a] for each. */
function paint(canvas, rows, colour) {
  const context = canvas.getContext("2d");
  canvas.width = rows[0].length;
  canvas.height = rows.length;
  const pixels = context.createImageData(canvas.width, canvas.height);
  rows.flat().forEach((cell, at) => {
    const [red, green, blue, alpha = 255] = colour(cell);
    pixels.data.set([red, green, blue, alpha], 4 * at);
  });
  context.putImageData(pixels, 0, 0);
}

export const largest = (rows) => Math.max(...rows.flat().map((value) => Math.abs(value ?? 0)));

/** A map from 0 to `top`. With `translucent`, low values show the image below. */
export function paintHeat(canvas, rows, top, translucent = false) {
  paint(canvas, rows, (value) => {
    const share = top > 0 ? (value ?? 0) / top : 0;
    return [...between(HEAT, share), translucent ? 110 + 120 * share : 255];
  });
}

/** A map from -`top` to `top`. */
export function paintDiverging(canvas, rows, top) {
  paint(canvas, rows, (value) => {
    const share = top > 0 ? (value ?? 0) / top : 0;
    return [...between(DIVERGING, 0.5 + share / 2), 230 * Math.abs(share)];
  });
}

export const paintClusters = (canvas, rows) => paint(canvas, rows, (label) => CLUSTERS[label]);

export function clear(canvas) {
  canvas.width = canvas.height = 1;
}

/** The colours of a map's scale, from left to right. */
export function paintScale(canvas, diverging) {
  const stops = diverging ? DIVERGING : HEAT;
  const row = Array.from({ length: 64 }, (_, at) => at / 63);
  paint(canvas, [row], (share) => between(stops, share));
}

export const pngAddress = (base64) => `data:image/png;base64,${base64}`;

export async function paintPng(canvas, base64) {
  const image = new Image();
  image.src = pngAddress(base64);
  await image.decode();
  canvas.width = image.naturalWidth;
  canvas.height = image.naturalHeight;
  canvas.getContext("2d").drawImage(image, 0, 0);
}
