// Faults: what failed, how often, with the first and the last example, and what was replaced or refused.

import { element, replace } from "./dom.js";
import { clock, count, number, percent } from "./format.js";
import { plainTable } from "./table.js";
import { figures, link, outcomeTag, panel, tag } from "./widgets.js";

const NAMES = {
  GeneratorReplaced: "Generators replaced",
  WorkerReplaced: "Workers replaced",
  ControllerRestarted: "Controller restarts",
  refused: "Updates refused",
  RolledBack: "Rollbacks",
  TaskQuarantined: "Tasks quarantined",
};

export async function show(root, page) {
  const body = element("div");
  root.append(
    element(
      "div",
      { class: "top" },
      element("h1", {}, "Faults"),
      element("span", { class: "about" }, "A failed attempt has no reward and is not trained on."),
    ),
    body,
  );
  const update = async () => {
    const answer = await page.api("faults");
    if (page.current()) draw(body, answer, page);
  };
  await update();
  return { update };
}

function draw(body, answer, page) {
  const counts = Object.entries(NAMES)
    .filter(([name]) => answer.counts[name] !== undefined)
    .map(([name, title]) => [title, count(answer.counts[name])]);
  replace(
    body,
    panel(null, figures([["Failed attempts", count(answer.total)], ...counts])),
    panel(
      "Causes",
      plainTable(causeColumns(page), answer.causes, {
        label: "Causes of failures",
        sentence: "No attempt has failed.",
      }),
    ),
    panel(
      "Rates",
      plainTable(rateColumns(page), answer.rates, { label: "Failures by domain", sentence: "No domain has failures." }),
    ),
    panel(
      "Replacements, restarts, refused updates and rollbacks",
      plainTable(eventColumns(), answer.events, {
        label: "Events",
        sentence: "None: no worker was lost, and no update was refused.",
      }),
    ),
  );
}

function causeColumns(page) {
  return [
    { title: "Count", align: "right", cell: ({ count: value }) => element("strong", {}, count(value)) },
    { title: "Kind", cell: ({ kind }) => outcomeTag(kind) },
    {
      title: "Cause",
      help: "Numbers and quoted parts are left out, so that alike causes count together.",
      cell: ({ cause }) => element("span", { class: "mono" }, cause),
    },
    {
      title: "Domains",
      cell: ({ kind, domains }) =>
        Object.entries(domains).map(([domain, value], index) => [
          index ? ", " : "",
          link(page.link("samples", [], { domain, status: kind }), `${domain} (${count(value)})`),
        ]),
    },
    { title: "First", cell: ({ first }) => example(first, page) },
    { title: "Last", cell: ({ last }) => example(last, page) },
  ];
}

function example(each, page) {
  const name =
    each.sibling === null || each.sibling === undefined ? `group ${each.group}` : `${each.group}.${each.sibling}`;
  const about = `${clock(each.time)}${each.step ? `, step ${each.step}` : ""}`;
  const target =
    each.sample === null ? page.link("samples", [], { group: each.group }) : page.link("samples", [each.sample]);
  return element(
    "div",
    { class: "example" },
    link(target, name),
    element("span", { class: "soft small" }, ` ${about}`),
    element("div", { class: "small mono" }, each.text),
  );
}

function rateColumns(page) {
  return [
    { title: "Domain", cell: ({ domain }) => domain },
    { title: "Status", cell: ({ status }) => outcomeTag(status) },
    {
      title: "Attempts",
      align: "right",
      cell: ({ domain, status, count: value }) => link(page.link("samples", [], { domain, status }), count(value)),
    },
    { title: "Of", align: "right", cell: ({ of }) => count(of) },
    { title: "Rate", align: "right", cell: ({ count: value, of }) => percent(value / of) },
  ];
}

function eventColumns() {
  return [
    { title: "Time", cell: ({ time }) => clock(time) },
    { title: "Step", align: "right", cell: ({ step }) => number(step) },
    { title: "What", cell: ({ title }) => tag(title, "warn") },
    { title: "Details", cell: ({ text }) => text },
  ];
}
