// Metrics: every number that the run recorded, with its meaning, and a curve of each one that is chosen.

import { lineChart, tone } from "./chart.js";
import { X_AXES, curve, heading, xAxis } from "./curves.js";
import { element, replace } from "./dom.js";
import { count, number, plural } from "./format.js";
import { Cursor } from "./frame.js";
import { plainTable } from "./table.js";
import { choices, field, panel } from "./widgets.js";

const MOST = 12;

export async function show(root, page) {
  const view = {
    page,
    chosen: new Set((page.query.names ?? "").split(",").filter((name) => name)),
    text: page.query.text ?? "",
    all: [],
    cursor: new Cursor(),
    figures: new Map(),
    list: element("div"),
    charts: element("div", { class: "grid2" }),
  };
  const about = element("span", { class: "about", role: "status" });
  root.append(
    element("div", { class: "top" }, element("h1", {}, "Metrics"), about, tools(view)),
    view.charts,
    view.list,
  );
  const update = async () => {
    const answer = await page.api("metrics");
    if (!page.current()) return;
    view.all = answer.metrics;
    replace(about, `${plural(view.all.length, "metric")}; choose up to ${MOST} to see their curves`);
    drawList(view);
    await drawCharts(view);
  };
  await update();
  return { update };
}

function tools(view) {
  const { page } = view;
  const filter = (value) => {
    view.text = value;
    page.keep({ text: value });
    drawList(view);
  };
  const search = field("Filter (key /)", view.text, filter, { size: 22, hint: "name or meaning", search: true });
  const x = choices("x axis", X_AXES, page.query.x ?? "step", (value) =>
    page.change({ x: value === "step" ? "" : value }),
  );
  return element("div", { class: "tools" }, search, x);
}

function drawList(view) {
  const { chosen, all } = view;
  const toggle = (name) => {
    if (!chosen.delete(name) && chosen.size < MOST) chosen.add(name);
    view.page.keep({ names: [...chosen].join(",") });
    drawList(view);
    drawCharts(view).catch(view.page.report);
  };
  const sentence = all.length ? "No metric matches; change the filter." : "No step is complete yet.";
  const rows = matching(all, view.text);
  replace(view.list, panel(null, plainTable(columns(chosen, toggle), rows, { label: "Metrics", sentence })));
}

async function drawCharts({ page, chosen, figures, charts, cursor }) {
  const names = [...chosen];
  const answer = names.length ? await page.api("series", { names: names.join(","), points: 500 }) : null;
  if (!page.current()) return;
  for (const name of names) {
    if (!figures.has(name)) figures.set(name, lineChart({ title: name, cursor, height: 170 }));
  }
  replace(
    charts,
    names.map((name) => panel(null, figures.get(name).node)),
  );
  names.forEach((name) => drawOne(figures.get(name), answer, name, page));
}

function matching(metrics, text) {
  const part = text.toLowerCase();
  return metrics.filter(({ name, meaning }) => `${name} ${meaning ?? ""}`.toLowerCase().includes(part));
}

function columns(chosen, toggle) {
  const box = ({ name }) => {
    const input = element("input", {
      type: "checkbox",
      "aria-label": `Curve of ${name}`,
      onchange: () => toggle(name),
    });
    input.checked = chosen.has(name);
    return input;
  };
  return [
    { title: "", cell: box },
    { title: "Metric", cell: ({ name }) => element("code", {}, name) },
    { title: "Last", align: "right", cell: ({ last }) => number(last) },
    { title: "Step", align: "right", cell: ({ step }) => count(step) },
    { title: "Meaning", cell: ({ meaning }) => meaning ?? "" },
  ];
}

function drawOne(chart, answer, name, page) {
  const link = (first, last) => page.link("samples", [], { step: first === last ? first : `${first}:${last}` });
  chart.update(() => {
    const axis = xAxis(answer, page.query.x);
    const series = curve(answer, name, { colour: tone(0), axis, link });
    return [series ? [series] : [], { ...axis, heading: heading(answer, axis) }];
  }, "No value of this metric yet.");
}
