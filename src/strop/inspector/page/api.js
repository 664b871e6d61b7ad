// The JSON API, and nothing else, is what the page talks to.

/** What the server refused, in its own sentence. */
export class Refusal extends Error {}

/** GET `path`, or POST `body` to it; the answer, or a Refusal. */
export async function ask(path, body) {
  const options = body && {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  };
  let answer, content;
  try {
    answer = await fetch(`/api/${path}`, options);
    content = await answer.json();
  } catch {
    throw new Refusal("The server does not answer. Look whether `strop inspect` still runs.");
  }
  if (!answer.ok) throw new Refusal(`${content.problem} ${content.remedy}`);
  return content;
}

/** `work`, one call at a time: calls made meanwhile replace each other, and the last one is made. */
export function latest(work) {
  let busy = false;
  let waiting = null;
  return async function call(...given) {
    if (busy) {
      waiting = given;
      return;
    }
    busy = true;
    try {
      await work(...given);
    } finally {
      busy = false;
    }
    if (waiting) {
      const next = waiting;
      waiting = null;
      await call(...next);
    }
  };
}

/** `work`, once nothing has been asked for `pause` milliseconds. */
export function settled(work, pause) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), pause);
  };
}
