// Samples: a table of all attempts with filters; everything chosen is in the link.

import { element, redraw, replace } from "./dom.js";
import { count, number, plural, signed } from "./format.js";
import { Table } from "./table.js";
import { field, outcomeTag, selection } from "./widgets.js";

const FILTERS = [
  "step",
  "domain",
  "status",
  "outcome",
  "reward",
  "tokens",
  "staleness",
  "version",
  "group",
  "task",
  "advantage",
  "text",
];
const LIMIT = 200;

const COLUMNS = [
  { title: "Id", width: 62, align: "right", sort: "id", cell: ({ id }) => String(id) },
  {
    title: "Step",
    width: 56,
    align: "right",
    sort: "step",
    help: "The step that trained on the attempt.",
    cell: ({ step }) => (step === null ? "–" : count(step)),
  },
  { title: "Domain", width: 88, grow: 0.6, cell: ({ domain }) => domain },
  {
    title: "Attempt",
    width: 78,
    align: "right",
    sort: "group",
    help: "Group and sibling.",
    cell: ({ group, sibling }) => `${group}.${sibling}`,
  },
  { title: "Reward", width: 72, align: "right", sort: "reward", cell: ({ reward }) => number(reward) },
  {
    title: "Advantage",
    width: 94,
    align: "right",
    sort: "advantage",
    help: "Mean over the tokens of the attempt.",
    cell: advantageCell,
  },
  { title: "Outcome", width: 88, cell: ({ outcome }) => outcomeTag(outcome) },
  { title: "Status", width: 100, cell: ({ status, reason }) => element("span", { title: reason }, outcomeTag(status)) },
  { title: "Tokens", width: 68, align: "right", sort: "tokens", cell: ({ tokens }) => count(tokens) },
  {
    title: "Stale",
    width: 58,
    align: "right",
    sort: "staleness",
    help: "Steps between the oldest version that sampled it and its training.",
    cell: ({ staleness }) => number(staleness),
  },
  {
    title: "Comment",
    width: 160,
    grow: 2,
    help: "Of the reward function, on why the reward is what it is.",
    cell: ({ comment }) => snippet(comment || null),
  },
  { title: "Prompt", width: 80, grow: 2, cell: ({ prompt }) => snippet(prompt) },
  { title: "Response", width: 90, grow: 2.4, cell: ({ response }) => snippet(response) },
];

export async function show(root, page) {
  const query = { ...page.query };
  const total = element("span", { class: "about", id: "total", role: "status" });
  const bar = element("div", { class: "panel filters" });
  const fresh = element(
    "button",
    { type: "button", hidden: true, onclick: () => page.change({}) },
    "New attempts: back to the start",
  );
  const histogram = element("div", { class: "field histogram", hidden: true });
  const filters = () => Object.fromEntries(FILTERS.map((name) => [name, query[name]]));
  const isNarrow = () => FILTERS.some((name) => query[name]);
  const sorted = query.sort ?? "-id";
  const table = new Table({
    columns: COLUMNS,
    sorted,
    label: "Attempts",
    sentence: () => emptySentence(isNarrow(), page.state),
    fetch: (cursor) => page.api("samples", { ...filters(), sort: sorted, limit: LIMIT, cursor }),
    href: ({ id }) => page.link("samples", [id], { ...filters(), sort: query.sort }),
    onSort: (name) => page.change({ sort: name === "-id" ? "" : name }),
    onLoad: (answer) => replace(total, totalText(answer, isNarrow(), page.state)),
    onError: page.report,
  });
  const set = (name) => (value) => {
    query[name] = value;
    page.keep({ [name]: value });
    table.restart();
    loadRewards().catch(page.report);
  };
  root.append(element("div", { class: "top" }, element("h1", {}, "Samples"), total, fresh), bar, table.node);
  const loadFacets = async () => {
    const answer = await page.api("facets");
    if (!bar.contains(document.activeElement)) drawFilters(bar, answer, histogram, { ...page, query, set });
  };
  const loadRewards = async () => {
    const asked = filters();
    const answer = await page.api("rewards", asked);
    if (JSON.stringify(asked) !== JSON.stringify(filters())) return;
    drawHistogram(histogram, answer, isNarrow(), { ...page, query });
  };
  await Promise.all([table.load(), loadFacets(), loadRewards()]);
  const update = async () => {
    if (table.atStart) await Promise.all([table.load(), loadFacets(), loadRewards()]);
    else fresh.hidden = false;
  };
  return { update, keys: { j: () => table.move(1), k: () => table.move(-1), Enter: () => table.open() } };
}

function emptySentence(narrow, state) {
  if (state?.index?.phase === "records")
    return "The journal is still being read; the attempts appear here as soon as it is.";
  if (narrow) return "No attempt matches; remove a filter.";
  return "No attempt has ended yet; the attempts appear here as they end.";
}

function totalText({ total, searched }, narrow, state) {
  const noun = narrow ? " matching" : "";
  const parts = [total === null ? "many matches" : `${plural(total, "attempt")}${noun}`];
  if (searched && searched.texts < searched.total)
    parts.push(`${count(searched.texts)} of ${count(searched.total)} texts searched so far`);
  else if (state?.index && state.index.phase === "records")
    parts.push(`${count(state.index.records)} of ${count(state.index.total)} read so far`);
  return parts.join(", ");
}

function advantageCell({ advantage }) {
  const kind = advantage > 0 ? "good" : advantage < 0 ? "bad" : "soft";
  return element("span", { class: kind }, signed(advantage));
}

function snippet(text) {
  return text === null
    ? element("span", { class: "soft" }, "–")
    : element("span", { class: "mono" }, text.replaceAll("\n", " ↵ "));
}

function drawFilters(bar, facets, histogram, page) {
  const { query, set } = page;
  const options = (counts, all) => [
    ["", all],
    ...Object.entries(counts).map(([name, number]) => [name, `${name.replaceAll("_", " ")} (${count(number)})`]),
  ];
  const range = (values) => (values ? `${number(values[0])}:${number(values[1])}` : "A:B");
  const clear = element(
    "button",
    { type: "button", onclick: () => page.change(Object.fromEntries(FILTERS.map((name) => [name, ""]))) },
    "Clear all",
  );
  const rare = ["version", "group", "task", "advantage"]
    .filter((name) => query[name])
    .map((name) => field(capital(name), query[name], set(name), { size: 8 }));
  replace(
    bar,
    field("Text (key /)", query.text, set("text"), { size: 20, hint: "in prompt or response", search: true }),
    field("Step", query.step, set("step"), {
      size: 8,
      hint: facets.steps ? `${facets.steps[0]}:${facets.steps[1]}` : "A:B",
    }),
    selection("Domain", options(facets.domains, "all"), query.domain ?? "", set("domain")),
    selection("Outcome", options(facets.outcomes, "all"), query.outcome ?? "", set("outcome")),
    selection("Status", options(facets.statuses, "all"), query.status ?? "", set("status")),
    field("Reward", query.reward, set("reward"), { size: 8, hint: range(facets.reward) }),
    field("Tokens", query.tokens, set("tokens"), { size: 8, hint: range(facets.tokens) }),
    field("Staleness", query.staleness, set("staleness"), { size: 6, hint: range(facets.staleness) }),
    rare,
    histogram,
    clear,
  );
}

/** Rewards of the attempts that match all other filters, as bars; each bar is a filter. */
function drawHistogram(node, { edges, counts }, narrow, page) {
  node.hidden = counts.length === 0;
  const most = Math.max(...counts, 1);
  const total = counts.reduce((sum, number) => sum + number, 0);
  redraw(node, [edges, counts, page.query], () => {
    const bars = counts.map((height, index) => {
      const [low, high] = [edges[index], edges[index + 1]];
      const title = `${plural(height, "attempt")} with a reward of ${number(low)} to ${number(high)}`;
      const href = page.link("samples", [], { ...page.query, reward: `${low}:${high}` });
      const bar = element("a", { href, title, "aria-label": title });
      bar.style.height = `${height ? Math.max(2, (26 * height) / most) : 0}px`;
      return bar;
    });
    const help = narrow ? "Of the attempts that match the other filters." : "Of all attempts.";
    return [
      element("span", { title: help }, `Rewards of ${count(total)}`),
      element("div", { class: "bars" }, bars),
    ];
  });
}

function capital(text) {
  return text[0].toUpperCase() + text.slice(1);
}
