// The state of the page is kept in the fragment of the address, which browsers do not send.

const list = (text) => (text ? text.split(".").map(Number) : []);

/** The state in the address; parts that are absent are undefined. */
export function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const found = {};
  if (given.has("scene")) {
    const [objects, seed] = list(given.get("scene"));
    found.scene = { objects, seed };
  }
  if (given.has("sample")) found.sample = Number(given.get("sample"));
  if (given.has("name")) found.name = given.get("name");
  if (given.has("codes")) {
    found.codes = list(given.get("codes"));
    found.length = Number(given.get("length") ?? found.codes.length);
    found.erased = list(given.get("erased"));
  }
  if (given.has("token")) found.token = Number(given.get("token"));
  if (given.has("pair")) found.pair = list(given.get("pair"));
  if (given.has("patch")) found.patch = Number(given.get("patch"));
  if (given.has("clusters")) found.clusters = Number(given.get("clusters"));
  if (given.has("code")) found.code = Number(given.get("code"));
  return found;
}

export function writeAddress(state) {
  const parts = new URLSearchParams();
  const { source, program } = state;
  if (source?.scene) parts.set("scene", `${source.scene.objects}.${source.scene.seed}`);
  else if (source?.sample !== undefined) parts.set("sample", source.sample);
  else if (source?.name) parts.set("name", source.name);
  if (program) {
    parts.set("codes", program.codes.join("."));
    parts.set("length", program.length);
    if (program.erased.length) parts.set("erased", program.erased.join("."));
  }
  if (state.token !== null) parts.set("token", state.token);
  if (state.pair.length) parts.set("pair", state.pair.join("."));
  if (state.patch !== null) parts.set("patch", state.patch);
  if (state.view === "clusters") parts.set("clusters", state.k);
  if (state.codePage !== null) parts.set("code", state.codePage);
  history.replaceState(null, "", `#${parts}`);
}

// A dropped image is too large for the address. The session storage keeps it over a reload.

export function keepImage(name, image) {
  try {
    sessionStorage.setItem("image", JSON.stringify({ name, image }));
  } catch {
    sessionStorage.removeItem("image"); // storage is full: a reload shows the program without the image
  }
}

export function keptImage(name) {
  const kept = JSON.parse(sessionStorage.getItem("image") ?? "null");
  return kept?.name === name ? kept.image : null;
}
