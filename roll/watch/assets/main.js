// The shell: the bar with runs and pages, the page of the present address, live changes, and keys.

import { follow, get, ofRun } from "./api.js";
import { element, replace } from "./dom.js";
import { ago, count, plural } from "./format.js";
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
/** Pause between two updates of a page: a multiple of what the last one took, within bounds. */
const [PAUSE_MS, MOST_PAUSE_MS, PAUSE_SHARE] = [400, 1000, 20];

const bar = document.getElementById("bar");
const main = document.getElementById("main");
const shell = {
  runs: null,
  run: null,
  state: null,
  view: null,
  shown: 0,
  stop: null,
  following: undefined,
  lost: false,
  busy: false,
  dirty: false,
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
  try {
    const module = await import(`/assets/page_${name}.js`);
    const view = await module.show(root, makeContext(state, root, current));
    if (!current()) return;
    replace(main, root);
    shell.view = view;
    root.dataset.ready = "true";
    if (shell.dirty) refresh();
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
    link: (page, rest, query) => address(state.run, page, rest, query),
    change: (entries) => (changed(entries) === location.hash ? show() : go(changed(entries))),
    redraw: show,
    keep: (entries) => go(changed(entries), { quiet: true }),
    report: (error) => {
      if (current()) root.prepend(message("bad", error.message));
    },
  };
}

/** What the bar shows of a run's state. */
const BAR = ["state", "step", "steps", "failures"];

/** Follow the changes of one run, or of the list of runs. */
function listen(run) {
  if (run === shell.following) return;
  shell.stop?.();
  [shell.following, shell.state, shell.lost] = [run, null, false];
  const onState = (state) => {
    const before = shell.state;
    [shell.state, shell.lost] = [state, false];
    if (run === null) shell.runs = state;
    if (!before || run === null || state.state === "silent" || BAR.some((name) => before[name] !== state[name]))
      drawBar(parse(location.hash));
    if (before && isNew(before, state)) refresh();
  };
  shell.stop = follow(run, onState, () => {
    shell.lost = true;
    drawBar(parse(location.hash));
  });
}

function isNew(before, state) {
  if (state.runs) return true;
  const progress = ({ phase, texts, records } = {}) => `${phase} ${phase === "done" ? 0 : texts + records}`;
  return (
    ["position", "lines", "state", "notices"].some((name) => before[name] !== state[name]) ||
    progress(before.index) !== progress(state.index)
  );
}

/** Let the page read what changed: one update at a time, and a short pause between two. */
async function refresh() {
  shell.dirty = true;
  if (shell.busy || !shell.view?.update) return;
  shell.busy = true;
  while (shell.dirty && shell.view?.update) {
    shell.dirty = false;
    const { shown, view } = shell;
    const began = performance.now();
    try {
      await view.update(shell.state);
    } catch (error) {
      if (error.status === undefined) console.error(error);
      if (shown === shell.shown && error.status !== 0) document.getElementById("spoken").textContent = error.message;
    }
    const pause = Math.min(MOST_PAUSE_MS, Math.max(PAUSE_MS, PAUSE_SHARE * (performance.now() - began)));
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
  shell.busy = false;
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
  if (shell.run === null) return null;
  const name =
    shell.runs.single || shell.runs.runs.length < 2 ? element("div", { class: "name" }, shell.run) : runChoice(state);
  return element("div", { class: "run" }, name, statusLine());
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
  if (!state || shell.following === null) return null;
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
