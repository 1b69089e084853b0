// Compare: curves of several runs over steps, tokens or wall clock, final numbers, and config keys that differ.

import { lineChart, tone } from "./chart.js";
import { X_AXES, curve, xAxis } from "./curves.js";
import { element, redraw, replace } from "./dom.js";
import { number } from "./format.js";
import { Cursor } from "./frame.js";
import { address } from "./router.js";
import { plainTable } from "./table.js";
import { choices, message, panel } from "./widgets.js";

const MOST = 8;
const TITLES = {
  reward: "Reward",
  "held-out": "Held-out tasks",
  length: "Response length",
  staleness: "Staleness",
  entropy: "Entropy",
};

export async function show(root, page) {
  const { query, runs } = page;
  const chosen = (query.runs ?? "").split(",").filter((name) => runs.runs.some(({ run }) => run === name));
  const parts = { above: element("div"), grid: element("div", { class: "grid2" }), below: element("div") };
  const figures = { cursor: new Cursor(), charts: new Map() };
  const x = choices("x axis", X_AXES, query.x ?? "step", (value) => page.change({ x: value === "step" ? "" : value }));
  root.append(
    element("div", { class: "top" }, element("h1", {}, "Compare"), element("div", { class: "tools" }, x)),
    runs.single ? null : runList(chosen, page),
    parts.above,
    parts.grid,
    parts.below,
  );
  const update = async () => {
    const sentence = advice(chosen, runs);
    if (sentence) {
      replace(parts.above, message("info", sentence));
      return;
    }
    const answer = await page.api("compare", { runs: chosen.join(","), points: 300 });
    if (page.current()) draw(parts, figures, answer, page);
  };
  await update();
  return { update };
}

function advice(chosen, runs) {
  if (runs.single) return "There is one run here; start roll watch with a folder of runs to compare several.";
  if (runs.runs.length < 2) return "There are fewer than two runs in this folder; they appear here as they start.";
  if (chosen.length < 2) return "Choose two runs or more above.";
  return chosen.length > MOST ? `Choose at most ${MOST} runs.` : null;
}

function runList(chosen, page) {
  const toggle = (run) => () =>
    page.change({ runs: (chosen.includes(run) ? chosen.filter((name) => name !== run) : [...chosen, run]).join(",") });
  const boxes = page.runs.runs.map(({ run }) => {
    const place = chosen.indexOf(run);
    const input = element("input", { type: "checkbox", onchange: toggle(run) });
    input.checked = place >= 0;
    return element("label", { class: place >= 0 ? `entry ${tone(place)}` : "soft" }, input, " ", run);
  });
  return element("fieldset", { class: "panel runs-choice" }, element("legend", {}, "Runs"), boxes);
}

function draw(parts, { cursor, charts }, { runs, config, names }, page) {
  const broken = runs.filter(({ error }) => error).map(({ run, error }) => message("bad", `${run}: ${error}`));
  const readable = runs.map((run, index) => ({ ...run, colour: index })).filter(({ error }) => !error);
  redraw(parts.above, broken.length, () => broken);
  redraw(parts.below, [runs.map(({ numbers }) => numbers), config], () => [
    numbers(readable),
    differences(runs, config),
  ]);
  for (const name of names) {
    if (!readable.some(({ series }) => series[name])) continue;
    if (!charts.has(name)) {
      charts.set(name, lineChart({ title: TITLES[name] ?? name, cursor, height: 210 }));
      parts.grid.append(panel(null, charts.get(name).node));
    }
    charts.get(name).update(() => {
      const axis = xAxis(flat(readable[0]), page.query.x);
      const series = readable.map((run) => runCurve(run, name, page)).filter((each) => each);
      return [series, { xName: axis.xName, xFormat: axis.xFormat, legend: true }];
    });
  }
}

/** The answer about a run in the form of an answer about series. */
function flat({ series, step, tokens, wall_s, bucket }) {
  return { series, step, tokens, wall_s, bucket };
}

function runCurve(run, name, page) {
  const answer = flat(run);
  const linked = (first, last) =>
    address(run.run, "samples", [], { step: first === last ? first : `${first}:${last}` });
  const axis = xAxis(answer, page.query.x);
  return curve(answer, name, {
    label: run.run,
    colour: run.colour,
    axis,
    link: linked,
    hint: `samples of this step of ${run.run}`,
    href: address(run.run, "overview"),
  });
}

function numbers(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.numbers ?? {})))];
  const columns = [
    { title: "", cell: (name) => name },
    ...runs.map(({ run, numbers: values }) => ({ title: run, align: "right", cell: (name) => number(values?.[name]) })),
  ];
  return panel("Numbers", plainTable(columns, names, { label: "Numbers", sentence: "No step is complete yet." }));
}

function differences(runs, config) {
  const text = (value) =>
    value === null
      ? element("span", { class: "soft" }, "not set")
      : element("code", {}, typeof value === "string" ? value : JSON.stringify(value));
  const columns = [
    { title: "Key", cell: ({ key }) => element("code", {}, key) },
    ...runs.map(({ run }, index) => ({ title: run, cell: ({ values }) => text(values[index]) })),
  ];
  return panel(
    "Config keys that differ",
    plainTable(columns, config, { label: "Config keys that differ", sentence: "The configs are the same." }),
  );
}
