// The shell: the bar with runs and pages, the page of the present address, live changes, and keys.
//
// A visible page follows the changes of its run: in one response that goes on, or by requests at a fixed interval.
// A hidden one asks for nothing.

import { follow, get, ofRun } from "./api.js";
import { element, replace } from "./dom.js";
import { ago, count, plural } from "./format.js";
import { forgetNodes } from "./in_view.js";
import { Keyboard } from "./keyboard.js";
import { address, changed, go, parse } from "./router.js";
import { restoreTheme, switchTheme, themeName } from "./theme.js";
import { message } from "./widgets.js";

const PAGES = [
  { key: "o", page: "overview", name: "Overview" },
  { key: "s", page: "samples", name: "Samples" },
  { key: "d", page: "scheduler", name: "Scheduler" },
  { key: "v", page: "versions", name: "Versions" },
  { key: "f", page: "faults", name: "Faults" },
  { key: "m", page: "metrics", name: "Metrics" },
  { key: "c", page: "compare", name: "Compare" },
  { key: "k", page: "config", name: "Config" },
  { key: "r", page: "runs", name: "Runs" },
];
const ABOUT_RUNS = new Set(["runs", "compare"]);
/** Pause between two requests for changes, and before a response that has ended is asked for again. */
const STATE_MS = 1000;
/** The same if there is no such run, or no access. */
const REFUSED_MS = 10_000;

const bar = document.getElementById("bar");
const main = document.getElementById("main");
const shell = {
  runs: null,
  run: null,
  state: null,
  view: null,
  shown: 0,
  following: undefined,
  lost: false,
  busy: false,
  timer: 0,
  stream: null,
  status: null,
};

async function start() {
  restoreTheme();
  const pages = PAGES.map(({ key, page, name }) => ({ key, name, go: () => go(pageAddress(page)) }));
  shell.keyboard = new Keyboard({ pages, view: () => shell.view, up, theme: nextTheme });
  try {
    shell.runs = await get("runs");
  } catch (error) {
    replace(main, message("bad", error.message));
    return;
  }
  window.addEventListener("hashchange", show);
  document.addEventListener("visibilitychange", () => plan(0));
  await show();
}

/** Draw the page of the present address. */
async function show() {
  const state = parse(location.hash);
  const only = shell.runs.single ? shell.runs.runs[0]?.run : null;
  if (state.page === "") {
    go(only ? address(only, "overview") : address(null, "runs"), { quiet: true });
    return show();
  }
  const shown = ++shell.shown;
  shell.run = state.run ?? shell.run ?? only;
  shell.view = null;
  shell.stream?.abort();
  listen(ABOUT_RUNS.has(state.page) ? null : state.run);
  drawBar(state);
  const entry = PAGES.find(({ page }) => page === state.page);
  document.title = [entry?.name ?? "Not found", state.run, "roll watch"].filter((part) => part).join(" · ");
  if (entry) return draw(state, shown);
  replace(main, message("warn", `There is no page named ${state.page}; choose one on the left.`));
}

/** Load the module of a page, and place what it shows unless the address has changed since. */
async function draw(state, shown) {
  const name = state.page === "samples" && state.rest.length > 0 ? "sample" : state.page;
  const root = element("div", { class: `page ${name}`, "data-page": name });
  const current = () => shown === shell.shown;
  forgetNodes();
  try {
    const module = await import(`/assets/page_${name}.js`);
    const view = await module.show(root, makeContext(state, root, current));
    if (!current()) return;
    replace(main, root);
    shell.view = view;
    root.dataset.ready = "true";
  } catch (error) {
    if (error.status === undefined) console.error(error);
    if (current()) replace(main, failure(error, state));
  }
}

function failure(error, state) {
  const again = element("button", { type: "button", onclick: show }, "Try again");
  const back = state.rest.length
    ? element("a", { href: address(state.run, state.page) }, "All samples")
    : element("a", { href: address(null, "runs") }, "All runs");
  return message("bad", element("p", {}, error.message), again, " ", back);
}

function makeContext(state, root, current) {
  return {
    ...state,
    runs: shell.runs,
    get state() {
      return shell.state;
    },
    current,
    api: (path, entries) => get(state.run === null ? path : ofRun(state.run, path), entries),
    follow: (path, entries, controller, take) => follow(ofRun(state.run, path), entries, controller, take),
    link: (page, rest, query) => address(state.run, page, rest, query),
    change: (entries) => (changed(entries) === location.hash ? show() : go(changed(entries))),
    redraw: show,
    keep: (entries) => go(changed(entries), { quiet: true }),
    report: (error) => {
      if (current()) root.prepend(message("bad", error.message));
    },
  };
}

/** Follow the changes of one run, or of the list of runs. */
function listen(run) {
  if (run === shell.following) return;
  [shell.following, shell.state, shell.lost] = [run, null, false];
  plan(0);
}

/** Ask for changes after a pause, unless the page is hidden. */
function plan(pause) {
  clearTimeout(shell.timer);
  if (document.visibilityState === "visible") shell.timer = setTimeout(poll, pause);
  else shell.stream?.abort();
}

/** Ask for changes: a page with `follow` until it is hidden or left, any other one once; it is updated if there are any. */
async function poll() {
  if (shell.busy) return;
  shell.busy = true;
  const { shown, view, following: run } = shell;
  let pause = STATE_MS;
  const take = async (state) => {
    if (run !== shell.following) return;
    const before = shell.state;
    if (run === null) shell.runs = state;
    showState(state, false);
    if (before && view === shell.view && view?.update && isNew(before, state)) await view.update(state);
  };
  try {
    if (view?.follow) {
      shell.stream = new AbortController();
      await view.follow(shell.stream, take);
    } else await take(await get(run === null ? "runs" : ofRun(run, "state")));
  } catch (error) {
    if (error.status === undefined) console.error(error);
    if (error.status === 0) showState(shell.state, true);
    else if (shown === shell.shown) document.getElementById("spoken").textContent = error.message;
    if (error.status === 403 || error.status === 404) pause = REFUSED_MS;
  }
  shell.busy = false;
  shell.stream = null;
  plan(run === shell.following && view === shell.view ? pause : 0);
}

function isNew(before, state) {
  if (state.runs) return JSON.stringify(before) !== JSON.stringify(state);
  const progress = ({ phase, position, texts, records } = {}) =>
    `${phase} ${position} ${phase === "done" ? 0 : texts + records}`;
  return (
    ["position", "lines", "state", "notices"].some((name) => before[name] !== state[name]) ||
    progress(before.index) !== progress(state.index)
  );
}

/** Show the state in the bar; only what differs is drawn. */
function showState(state, lost) {
  const failures = shell.state?.failures;
  [shell.state, shell.lost] = [state, lost];
  if (!shell.status || failures !== state?.failures) return drawBar(parse(location.hash));
  const status = statusLine();
  if (status.outerHTML === shell.status.outerHTML) return;
  shell.status.replaceWith(status);
  shell.status = status;
}

function pageAddress(page) {
  if (page === "compare") return address(null, page, [], { runs: shell.run });
  return ABOUT_RUNS.has(page) ? address(null, page) : address(shell.run ?? shell.runs.runs[0]?.run ?? "", page);
}

function drawBar(state) {
  const pages = PAGES.filter(({ page }) => ABOUT_RUNS.has(page) || shell.run !== null);
  const badge = (page) =>
    page === "faults" && shell.state?.failures > 0
      ? element("span", { class: "badge", title: plural(shell.state.failures, "failure") }, count(shell.state.failures))
      : null;
  const links = pages.map(({ page, name, key }) =>
    element(
      "a",
      { href: pageAddress(page), "aria-current": page === state.page ? "page" : null, title: `g ${key}` },
      name,
      badge(page),
    ),
  );
  const keys = element(
    "button",
    { type: "button", class: "plain", onclick: () => shell.keyboard.showList() },
    "keys ",
    element("kbd", {}, "?"),
  );
  const theme = element("button", { type: "button", class: "plain", id: "theme", onclick: nextTheme }, themeName());
  const foot = element(
    "div",
    { class: "foot small" },
    keys,
    theme,
    element("a", { href: "/plain", class: "soft" }, "plain tables"),
  );
  replace(
    bar,
    element("a", { class: "brand", href: address(null, "runs") }, "roll watch"),
    runBox(state),
    element("nav", { "aria-label": "Pages" }, links),
    foot,
  );
}

function runBox(state) {
  shell.status = statusLine();
  if (shell.run === null) return null;
  const name =
    shell.runs.single || shell.runs.runs.length < 2 ? element("div", { class: "name" }, shell.run) : runChoice(state);
  return element("div", { class: "run" }, name, shell.status);
}

function runChoice(state) {
  const options = shell.runs.runs.map(({ run }) => element("option", { value: run, selected: run === shell.run }, run));
  const choose = (event) => go(address(event.target.value, ABOUT_RUNS.has(state.page) ? "overview" : state.page));
  return element("select", { "aria-label": "Run", onchange: choose }, options);
}

const STATES = { running: "running", silent: "lost", ended: "finished", empty: "", unreadable: "failed" };

function statusLine() {
  if (shell.lost)
    return element("div", { class: "status lost", title: "The page tries to connect again." }, "no connection");
  const { state, step, steps, changed: when, end } = shell.state ?? {};
  if (!state || shell.following === null) return element("div", { class: "status" });
  const progress =
    step === null || step === undefined ? "" : `, step ${count(step)}${steps ? ` of ${count(steps)}` : ""}`;
  const words =
    state === "silent" ? `silent for ${ago(when).replace(" ago", "")}` : state === "ended" && end ? end.reason : state;
  return element("div", { class: `status ${STATES[state] ?? ""}`, "data-state": state }, `${words}${progress}`);
}

function nextTheme() {
  const name = switchTheme();
  const button = document.getElementById("theme");
  if (button) button.textContent = name;
}

/** Esc: from a sample to the table, from a filtered table to all of it, from any other page to the overview. */
function up() {
  const { run, page, rest, query } = parse(location.hash);
  if (rest.length) go(shell.view?.back ?? address(run, page));
  else if (Object.keys(query).length) go(address(run, page));
  else if (run !== null && page !== "overview") go(address(run, "overview"));
  else if (run !== null && !shell.runs.single) go(address(null, "runs"));
}

start();
