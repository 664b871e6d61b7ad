// The API reference, generated from the OpenAPI description.

const spec = await (await fetch("/api/openapi.json")).json();

function element(kind, text, ...children) {
  const made = document.createElement(kind);
  if (text) made.textContent = text;
  made.append(...children);
  return made;
}

const resolve = (schema) =>
  schema?.$ref ? spec.components.schemas[schema.$ref.split("/").at(-1)] : schema;

/** A schema in a few words. */
function kind(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.anyOf) return schema.anyOf.map(kind).join(" or ");
  if (schema.type === "array") return `list of ${kind(schema.items)}`;
  const low = schema.minimum ?? null;
  const high = schema.maximum ?? (schema.exclusiveMaximum ? schema.exclusiveMaximum - 1 : null);
  return low !== null && high !== null ? `${schema.type} ${low} … ${high}` : schema.type;
}

function table(schema) {
  const { properties = {}, required = [] } = resolve(schema);
  const rows = Object.entries(properties).map(([name, part]) => {
    const needed = required.includes(name) ? "" : ` = ${JSON.stringify(part.default ?? null)}`;
    return element("tr", "", element("td", name), element("td", kind(part) + needed), element("td", part.description ?? ""));
  });
  return element("table", "", element("tbody", "", ...rows));
}

function part(title, schema) {
  const resolved = resolve(schema);
  return [element("h3", `${title}: ${kind(schema)}. ${resolved.description ?? ""}`), table(schema)];
}

const content = (holder) => holder?.content?.["application/json"]?.schema;

document.getElementById("description").textContent =
  `${spec.info.description} Every error holds a problem and a remedy. ` +
  "A program is one line of the file that Program.save writes.";
for (const [path, methods] of Object.entries(spec.paths)) {
  for (const [method, { description, requestBody, responses }] of Object.entries(methods)) {
    const article = element("article", "", element("h2", `${method.toUpperCase()} ${path}`), element("p", description));
    if (content(requestBody)) article.append(...part("Request", content(requestBody)));
    article.append(...part("Response", content(responses[200])));
    document.getElementById("endpoints").append(article);
  }
}
const shared = element("article", "", element("h2", "ProgramJson"), element("p", spec.components.schemas.ProgramJson.description));
shared.append(table({ $ref: "#/ProgramJson" }));
document.getElementById("endpoints").append(shared);
