// The table of domains: rewards at the start and the end, sudden changes, failures.

import { tone } from "./chart.js";
import { element, patch, redraw } from "./dom.js";
import { count, number, percent, plural, signed } from "./format.js";
import { drawInView } from "./in_view.js";
import { plainTable } from "./table.js";
import { link, panel } from "./widgets.js";

/** Draw the table at once if it is the first one, or else when it is in view. */
export function drawDomains(node, answer, rewards, jumps, page, first) {
  const rows = answer.domains;
  const key = [rows, jumps.map(({ series, jump }) => [series.domain, jump.step, jump.before, jump.after])];
  const draw = () => redraw(node, key, () => (rows.length ? domainTable(rows, rewards, jumps, page) : []), patch);
  if (first) draw();
  else drawInView(node, draw);
}

function domainTable(rows, rewards, jumps, page) {
  const colours = new Map(rewards.map(({ domain, tone: colour }) => [domain, colour]));
  const jumpOf = new Map(jumps.map(({ series, jump }) => [series.domain, jump]));
  const columns = [
    {
      title: "Domain",
      cell: ({ domain }) =>
        element(
          "a",
          { class: `entry ${colours.get(domain) ?? tone(7)}`, href: page.link("samples", [], { domain }) },
          domain,
        ),
    },
    {
      title: "First reward (mean)",
      align: "right",
      help: "Mean over the first steps; see below the table.",
      cell: ({ reward_first: value }) => number(value),
    },
    {
      title: "Last reward (mean)",
      align: "right",
      help: "Mean over the last steps; see below the table.",
      cell: ({ reward_last: value }) => number(value),
    },
    { title: "Change", align: "right", cell: changeCell },
    { title: "Sudden change", cell: ({ domain }) => jumpCell(jumpOf.get(domain), domain, page) },
    { title: "Attempts", align: "right", cell: ({ attempts }) => count(attempts) },
    { title: "Failed", align: "right", cell: (row) => failedCell(row, page) },
    {
      title: "Truncated",
      align: "right",
      cell: ({ domain, truncated }) =>
        truncated ? link(page.link("samples", [], { domain, status: "truncated" }), count(truncated)) : "0",
    },
    { title: "Tokens per attempt", align: "right", cell: ({ tokens }) => number(tokens) },
  ];
  const steps = Math.max(...rows.map(({ edge_steps: number }) => number));
  const about = `First and last reward: means over the first and the last ${plural(steps, "step")} with the domain.`;
  return panel(
    "Domains",
    plainTable(columns, rows, { label: "Domains" }),
    steps ? element("p", { class: "small soft" }, about) : null,
  );
}

function changeCell({ reward_first: first, reward_last: last }) {
  if (first === null || last === null) return "–";
  return element("span", { class: last < first ? "bad" : "good" }, signed(last - first));
}

function jumpCell(jump, domain, page) {
  if (!jump) return element("span", { class: "soft" }, "none");
  return link(
    page.link("samples", [], { domain, step: jump.step }),
    `step ${jump.step}: ${number(jump.before)} to ${number(jump.after)}`,
  );
}

function failedCell({ domain, failed, attempts }, page) {
  if (!failed) return "0";
  return link(
    page.link("samples", [], { domain, outcome: "failed" }),
    `${count(failed)} (${percent(failed / attempts)})`,
  );
}
