// Runs: the run directories of the folder, with their state and numbers.

import { element, replace } from "./dom.js";
import { ago, count, number, plural } from "./format.js";
import { address } from "./router.js";
import { plainTable } from "./table.js";
import { link, message, panel, tag } from "./widgets.js";

const KINDS = { running: "good", silent: "warn", unreadable: "bad" };
const MOST = 8;

export async function show(root, page) {
  const about = element("span", { class: "about", role: "status" });
  const body = element("div");
  root.append(element("div", { class: "top" }, element("h1", {}, "Runs"), about), body);
  const update = async (state) => {
    const answer = state?.runs ? state : await page.api("runs");
    if (!page.current()) return;
    replace(about, `${plural(answer.runs.length, "run")} in ${answer.folder}`);
    const errors = answer.runs.filter(({ error }) => error).map(({ run, error }) => message("bad", `${run}: ${error}`));
    const sentence = "No run directory here yet; roll train writes one, and it appears here.";
    replace(
      body,
      panel(null, plainTable(columns(), answer.runs, { label: "Runs", sentence })),
      compareLink(answer),
      errors,
    );
  };
  await update(null);
  return { update };
}

function compareLink({ runs }) {
  const usable = runs.filter(({ error, state }) => !error && state !== "empty").slice(0, MOST);
  if (usable.length < 2) return null;
  return element(
    "p",
    {},
    link(
      address(null, "compare", [], { runs: usable.map(({ run }) => run).join(",") }),
      `Compare ${usable.length === runs.length ? "all of them" : `the first ${usable.length}`}`,
    ),
  );
}

function columns() {
  return [
    { title: "Run", cell: ({ run, error }) => (error ? run : link(address(run, "overview"), run)) },
    { title: "State", cell: ({ state }) => tag(state, KINDS[state] ?? "") },
    {
      title: "Step",
      align: "right",
      cell: ({ step, steps }) => (step === null ? "–" : `${count(step)}${steps ? ` of ${count(steps)}` : ""}`),
    },
    { title: "Reward", align: "right", cell: ({ reward }) => number(reward) },
    { title: "Held-out", align: "right", cell: ({ held_out: value }) => number(value) },
    { title: "Changed", align: "right", cell: ({ changed }) => ago(changed) },
  ];
}
