// The address: `#/run/NAME/samples/731?view=tokens`. All state of a page is in it, so that every view can be linked.

/** Run, page, rest of the path, and query of an address; the run is null on pages about several. */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const parts = path
    .split("/")
    .filter((part) => part)
    .map(decode);
  const entries = Object.fromEntries(new URLSearchParams(query));
  if (parts[0] !== "run") return { run: null, page: parts[0] ?? "", rest: parts.slice(1), query: entries };
  return { run: parts[1] ?? "", page: parts[2] ?? "overview", rest: parts.slice(3), query: entries };
}

/** The address of a page; entries without a value are left out. */
export function address(run, page, rest = [], query = {}) {
  const path = [...(run === null ? [] : ["run", run]), page, ...[rest].flat()].map(encodeURIComponent).join("/");
  const entries = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(entries).toString().replaceAll("%3A", ":").replaceAll("%2C", ",");
  return `#/${path}${text ? `?${text}` : ""}`;
}

/** The present address with other values of some entries of its query. */
export function changed(entries) {
  const { run, page, rest, query } = parse(location.hash);
  return address(run, page, rest, { ...query, ...entries });
}

/** Show an address; with `quiet`, without drawing the page again and without an entry in the browser's history. */
export function go(hash, { quiet = false } = {}) {
  if (quiet) history.replaceState(null, "", hash);
  else location.hash = hash;
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a link that was cut inside an escape
  }
}
