// Requests to the server that this page came from.

/** An answer that says what is wrong and what to do. */
export class RequestError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** The JSON at a path; entries without a value are left out. */
export async function get(path, entries = {}) {
  const query = new URLSearchParams(
    Object.entries(entries).filter(([, value]) => value !== null && value !== undefined && value !== ""),
  );
  const text = query.toString();
  let response;
  try {
    response = await fetch(`/api/${path}${text ? `?${text}` : ""}`);
  } catch {
    throw new RequestError(
      "The server does not answer; start `roll watch` again, and open the link that it prints.",
      0,
    );
  }
  if (response.ok) return response.json();
  const body = await response.json().catch(() => ({}));
  if (response.status === 403)
    throw new RequestError("This link is no longer valid; open the one that `roll watch` printed last.", 403);
  throw new RequestError(
    body.error ?? `The server answered with status ${response.status}; see its terminal.`,
    response.status,
  );
}

/** The path of one run. */
export function ofRun(run, path) {
  return `runs/${encodeURIComponent(run)}/${path}`;
}
