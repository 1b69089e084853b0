// Requests to the server that this page came from.

/** An answer that says what is wrong and what to do. */
export class RequestError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** A page that gets no line for this long, not even an empty one, is no longer connected. */
const SILENT_MS = 40_000;

/** The JSON at a path; entries without a value are left out. */
export async function get(path, entries = {}) {
  return (await request(path, entries)).json();
}

/** Call `take` with the JSON of each line that the server sends, until it ends the response or `controller` aborts. */
export async function follow(path, entries, controller, take) {
  let [heard, silent] = [true, false];
  const watch = setInterval(() => {
    if (!heard) {
      silent = true;
      controller.abort();
    }
    heard = false;
  }, SILENT_MS);
  try {
    const response = await request(path, { ...entries, follow: 1 }, controller.signal);
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    let text = "";
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      heard = true;
      text += decoder.decode(part.value, { stream: true });
      const lines = text.split("\n");
      text = lines.pop();
      for (const line of lines) if (line) await take(JSON.parse(line));
    }
  } catch (error) {
    if (silent || error instanceof TypeError) throw noAnswer(); // the connection was cut
    if (error.name !== "AbortError") throw error;
  } finally {
    clearInterval(watch);
  }
}

async function request(path, entries, signal) {
  const query = new URLSearchParams(
    Object.entries(entries).filter(([, value]) => value !== null && value !== undefined && value !== ""),
  );
  const text = query.toString();
  let response;
  try {
    response = await fetch(`/api/${path}${text ? `?${text}` : ""}`, { signal });
  } catch (error) {
    throw error.name === "AbortError" ? error : noAnswer();
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  if (response.status === 403)
    throw new RequestError("This link is no longer valid; open the one that `roll watch` printed last.", 403);
  throw new RequestError(
    body.error ?? `The server answered with status ${response.status}; see its terminal.`,
    response.status,
  );
}

function noAnswer() {
  return new RequestError("The server does not answer; start `roll watch` again, and open the link that it prints.", 0);
}

/** The path of one run. */
export function ofRun(run, path) {
  return `runs/${encodeURIComponent(run)}/${path}`;
}
