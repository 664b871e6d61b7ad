// Requests to the JSON API.

/** An error with a message for the user. */
export class RequestError extends Error {}

/** GET `path`, or POST `body` to it. Returns the response or throws a RequestError. */
export async function request(path, body) {
  const options = body && {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  };
  let response, content;
  try {
    response = await fetch(`/api/${path}`, options);
    content = await response.json();
  } catch {
    throw new RequestError("The server does not respond. Check that `strop inspect` is running.");
  }
  if (!response.ok) throw new RequestError(`${content.problem} ${content.remedy}`);
  return content;
}

/** `work`, one call at a time. Of the calls made during a call only the last is executed. */
export function latest(work) {
  let busy = false;
  let waiting = null;
  return async function call(...args) {
    if (busy) {
      waiting = args;
      return;
    }
    busy = true;
    try {
      await work(...args);
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

/** `work`, called after `pause` milliseconds without another call. */
export function debounced(work, pause) {
  let timer;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...args), pause);
  };
}
