// Scheduler: what is in flight, what each worker does, and what it waits for.

import { element, replace } from "./dom.js";
import { ago, clock, count, duration } from "./format.js";
import { activityTone, laneChart } from "./lanes.js";
import { plainTable } from "./table.js";
import { figures, link, panel, tag } from "./widgets.js";

const FASTER = 0.5;
const LEAST_S = 0.05;
const MOST_GROUPS = 100;

export async function show(root, page) {
  const tools = element("div", { class: "tools" });
  const queues = element("div");
  const lanes = laneChart();
  const workers = element("div");
  const groups = element("div");
  root.append(
    element("div", { class: "top" }, element("h1", {}, "Scheduler"), tools),
    queues,
    panel(null, lanes.node),
    workers,
    groups,
  );
  const update = async () => {
    const answer = await page.api("scheduler", { from: page.query.from, to: page.query.to, points: 600 });
    if (!page.current()) return;
    drawTools(tools, answer, page);
    drawQueues(queues, answer);
    lanes.update(answer);
    drawWorkers(workers, answer, page);
    drawGroups(groups, answer, page);
  };
  await update();
  return { update };
}

function drawTools(node, { window: { from, to }, run }, page) {
  const width = to - from;
  const go = (start, end) => () => page.change({ from: start.toFixed(3), to: end.toFixed(3) });
  const button = (name, action, help) => element("button", { type: "button", onclick: action, title: help }, name);
  const shown = `${duration(width)}, from ${duration(from - run.start)} to ${duration(to - run.start)} of the run`;
  replace(
    node,
    element("span", { class: "soft small" }, shown),
    button("←", go(Math.max(run.start, from - width / 2), Math.max(run.start + LEAST_S, to - width / 2)), "earlier"),
    button("→", go(from + width / 2, to + width / 2), "later"),
    button("+", go(to - Math.max(LEAST_S, width * FASTER), to), "half of this time"),
    button("−", go(Math.max(run.start, to - width / FASTER), to), "twice this time"),
    button("whole run", go(run.start, run.end)),
    button("newest", () => page.change({ from: "", to: "" }), "the end of the run; follows it while it runs"),
  );
}

function drawQueues(node, { queues, window, steps }) {
  const last = steps.at(-1);
  replace(
    node,
    panel(
      null,
      figures(
        [
          ["Groups being sampled", count(queues.sampling)],
          ["Ready for a step", count(queues.ready)],
          ["In training", count(queues.training)],
          ["Slots", queues.slots === null ? null : count(queues.slots), "", "Most groups in flight."],
          last && [
            "Newest step",
            count(last.step),
            last.end === null ? "in training" : `took ${duration(last.end - last.start)}`,
          ],
          ["As of", clock(window.to)],
        ].filter((entry) => entry && entry[1] !== null),
      ),
    ),
  );
}

function drawWorkers(node, { lanes, window: { from, to } }, page) {
  const running = page.state?.state === "running";
  const columns = [
    { title: "Worker", cell: ({ worker }) => element("strong", {}, worker) },
    { title: "Now", cell: ({ now }) => nowCell(now, running) },
    {
      title: "Waits for",
      cell: ({ now }) => (now?.waits_for ? tag(now.waits_for, "warn") : element("span", { class: "soft" }, "–")),
    },
    { title: "Since", cell: ({ now }) => (now && running ? ago(now.since) : "–") },
    { title: "In this window", cell: ({ totals }) => shares(totals, to - from) },
  ];
  replace(
    node,
    panel(
      "What each worker does and waits for",
      plainTable(columns, lanes, {
        label: "Workers",
        sentence: "No worker has recorded an activity yet; the first one is recorded when it ends.",
      }),
    ),
  );
}

function nowCell(now, running) {
  if (!now) return "–";
  if (!running) return element("span", { class: "soft" }, `at the end: ${now.activity}`);
  return now.known
    ? now.activity
    : element("span", { class: "soft", title: "An activity is recorded when it ends." }, `after: ${now.activity}`);
}

function shares(totals, width) {
  const entries = Object.entries(totals)
    .sort((a, b) => b[1] - a[1])
    .slice(0, 4);
  return element(
    "span",
    {},
    entries.map(([activity, seconds]) =>
      element(
        "span",
        { class: `entry share ${activityTone(activity)}` },
        `${activity} ${Math.round((100 * seconds) / (width || 1))} %`,
      ),
    ),
  );
}

function drawGroups(node, { groups, steps }, page) {
  const columns = [
    { title: "Group", align: "right", cell: ({ group }) => link(page.link("samples", [], { group }), String(group)) },
    { title: "Domain", cell: ({ domain }) => domain },
    { title: "Task", cell: ({ task }) => element("code", {}, task.slice(0, 60)) },
    { title: "Phase", cell: ({ phase }) => tag(phase, phase === "training" ? "good" : "") },
    { title: "Version at admission", align: "right", cell: ({ birth }) => count(birth) },
    { title: "Age", align: "right", cell: ({ age_s: age }) => duration(age) },
    {
      title: "Siblings",
      cell: ({ siblings }) =>
        element(
          "span",
          { class: "siblings" },
          siblings.map((each) => oneSibling(each, page)),
        ),
    },
    { title: "Retries", align: "right", cell: ({ retries }) => count(retries) },
  ];
  const sentence = steps.length
    ? "No group is in flight."
    : "No group was admitted yet; the first ones are admitted once the workers have started.";
  const more =
    groups.length > MOST_GROUPS
      ? element("p", { class: "soft small" }, `The oldest ${MOST_GROUPS} of ${groups.length} are shown.`)
      : null;
  replace(
    node,
    panel(
      `Groups in flight (${groups.length})`,
      plainTable(columns, groups.slice(0, MOST_GROUPS), { label: "Groups in flight", sentence }),
      more,
    ),
  );
}

function oneSibling({ sibling, phase, tokens, status, id }, page) {
  const text = `${sibling}: ${status ?? phase}, ${count(tokens)} tokens`;
  const attributes = {
    class: `sibling ${phase} ${status && status !== "finished" ? "failed" : ""}`,
    title: text,
    "aria-label": text,
  };
  return id === null ? element("span", attributes) : element("a", { ...attributes, href: page.link("samples", [id]) });
}
