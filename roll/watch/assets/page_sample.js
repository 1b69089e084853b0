// One attempt: the conversation, its tokens, its siblings side by side, and what happened to it.

import { element, replace } from "./dom.js";
import { clock, count, duration, number, plural, signed } from "./format.js";
import { plainTable } from "./table.js";
import { drawTokens } from "./tokens.js";
import { choices, figures, link, message, outcomeTag, panel, tag } from "./widgets.js";

const VIEWS = [
  ["conversation", "Conversation"],
  ["tokens", "Tokens"],
  ["siblings", "Siblings"],
];
const MOST_SIBLINGS = 8;
const FILTERS_ONLY = ["view", "colour", "from"];

export async function show(root, page) {
  const { query, rest } = page;
  const view = query.view ?? "conversation";
  const answer = await page.api(`samples/${encodeURIComponent(rest[0])}`, {
    tokens_from: query.from,
    tokens_limit: view === "tokens" ? 4000 : 10,
  });
  const filters = Object.fromEntries(Object.entries(query).filter(([name]) => !FILTERS_ONLY.includes(name)));
  const back = page.link("samples", [], filters);
  const neighbour = (id) => (id === null ? null : page.link("samples", [id], query));
  const main = element("div", { class: "main" });
  const choose = (value) => page.change({ view: value === "conversation" ? "" : value, from: "" });
  const tabs = choices("View", VIEWS, view, choose, { shown: false });
  root.append(
    title(answer, back, neighbour, tabs),
    facts(answer, page),
    element("div", { class: "columns" }, main, element("aside", {}, scorePanel(answer), lineage(answer, page))),
  );
  if (view === "tokens") drawTokens(main, answer, page);
  else if (view === "siblings") await drawSiblings(main, answer, page);
  else drawConversation(main, answer);
  const update = async () => {
    const newer = await page.api(`samples/${encodeURIComponent(rest[0])}`, { tokens_limit: 1 });
    if (page.current() && fate(newer) !== fate(answer)) await page.redraw();
  };
  const move = (id) => () => id !== null && (location.hash = neighbour(id));
  return {
    back,
    update,
    keys: { j: move(answer.previous), k: move(answer.next), s: () => page.change({ view: "siblings" }) },
  };
}

/** What can change after an attempt has ended. */
function fate({ sample, lineage: events, next }) {
  return `${sample.outcome} ${sample.step} ${events.length} ${next === null}`;
}

function title({ sample, previous, next }, back, neighbour, tabs) {
  const older = neighbour(previous) && element("a", { href: neighbour(previous), title: "key j" }, "older");
  const newer = neighbour(next) && element("a", { href: neighbour(next), title: "key k" }, "newer");
  return element(
    "div",
    { class: "top" },
    element("h1", {}, `Attempt ${sample.group}.${sample.sibling}`),
    element("span", { class: "about" }, sample.domain, " · task ", element("code", {}, sample.task)),
    link(back, "all samples"),
    older,
    newer,
    element("div", { class: "tools" }, tabs),
  );
}

function facts({ sample, advantage, group_mean: mean, mismatch }, page) {
  const { versions, step } = sample;
  const shown = versions && (versions[0] === versions[1] ? String(versions[0]) : `${versions[0]} to ${versions[1]}`);
  return panel(
    null,
    figures([
      ["Reward", number(sample.reward), sample.reward === null ? "none: it failed" : ""],
      ["Mean of its group", number(mean)],
      ["Advantage", signed(advantage)],
      ["Outcome", outcomeTag(sample.outcome)],
      ["Status", outcomeTag(sample.status)],
      ["Step", step === null ? "–" : link(page.link("samples", [], { step, domain: sample.domain }), String(step))],
      ["Tokens", count(sample.tokens)],
      ["Versions", shown ?? "–"],
      ["Staleness", number(sample.staleness), sample.staleness === null ? "" : "steps"],
      mismatch && [
        "Mismatch in its step",
        number(mismatch.mean),
        "nats",
        `Largest ${number(mismatch.max)}: mean |trainer logprob - sampler logprob| over all tokens of step ${mismatch.step}.`,
      ],
      ["Ended", clock(sample.ended)],
    ]),
    sample.reason ? message(sample.status === "truncated" ? "warn" : "bad", sample.reason) : null,
  );
}

function scorePanel({ score, reference, metrics, metadata }) {
  const values = Object.entries(score?.parts ?? {}).map(([name, value]) => [name, number(value)]);
  const measured = Object.entries(metrics ?? {}).map(([name, value]) => [name, number(value)]);
  const rest = Object.entries(metadata ?? {}).map(([name, value]) => [
    name,
    typeof value === "string" ? value : JSON.stringify(value),
  ]);
  return panel(
    "Score",
    element("div", { class: "soft" }, "Reference answer"),
    element("pre", { class: "text reference" }, reference ?? "none"),
    score?.comment
      ? [element("div", { class: "soft" }, "Comment of the reward"), element("pre", { class: "text" }, score.comment)]
      : null,
    pairs("Parts of the reward", values),
    pairs("Measured", measured),
    pairs("Metadata of the task", rest),
  );
}

function pairs(name, entries) {
  if (entries.length === 0) return null;
  return element(
    "details",
    { open: entries.length < 8 },
    element("summary", {}, name),
    element(
      "table",
      { class: "plain small" },
      element(
        "tbody",
        {},
        entries.map(([key, value]) =>
          element("tr", {}, element("td", {}, key), element("td", { class: "right mono" }, value)),
        ),
      ),
    ),
  );
}

function lineage({ lineage: events, sample }, page) {
  const items = events.map(({ time, title: name, text }, index) => {
    const since = index > 0 && time && events[0].time ? `+${duration(time - events[0].time)}` : clock(time);
    return element(
      "li",
      {},
      element("strong", {}, name),
      " ",
      element("span", { class: "soft small" }, since),
      element("div", { class: "small" }, text),
    );
  });
  const group = link(page.link("samples", [], { group: sample.group }), `group ${sample.group}`);
  return panel(
    "What happened to it",
    items.length
      ? element("ol", { class: "lineage" }, items)
      : element("p", { class: "empty" }, "The journal has no event about it."),
    element("p", { class: "small" }, "All attempts of ", group),
  );
}

function drawConversation(main, answer) {
  if (answer.pruned)
    main.append(message("info", "The text was pruned (journal.keep_steps); raise it to keep the text of more steps."));
  if (answer.cut) main.append(message("warn", "Long texts are cut here; roll samples prints all of them."));
  const { turns, sample } = answer;
  for (const part of answer.conversation) {
    const turn = turns.find(({ turn: index }) => index === part.turn);
    main.append(oneMessage(part, part.role === "assistant" ? turn : null));
  }
  if (answer.conversation.length === 0 && !answer.pruned)
    main.append(
      element(
        "p",
        { class: "empty" },
        `Nothing was said: the attempt ended as ${sample.status} before its first turn.`,
      ),
    );
}

function oneMessage({ role, text, calls, agent, turn: index }, turn) {
  const about = [];
  if (agent && agent !== "policy") about.push(agent);
  if (index !== null && index !== undefined) about.push(`turn ${index + 1}`);
  if (turn) {
    about.push(
      plural(turn.num_sampled, "token"),
      `ended by ${turn.finish}`,
      `version ${turn.versions.map(([version]) => version).join(", ")}`,
    );
    about.push(`${duration(turn.generated_s)}${turn.queued_s > 0.001 ? ` (queued ${duration(turn.queued_s)})` : ""}`);
    if (turn.reward) about.push(`reward ${number(turn.reward)}`);
  }
  const tools = (calls ?? []).map(({ name, arguments: values }) =>
    element(
      "div",
      { class: "call" },
      tag("tool call"),
      " ",
      element("code", {}, `${name} ${typeof values === "string" ? values : JSON.stringify(values)}`),
    ),
  );
  const known = ["user", "system", "assistant", "environment", "tool"].includes(role) ? role : "other";
  return element(
    "article",
    { class: `said ${known}` },
    element(
      "header",
      {},
      element("strong", {}, role),
      " ",
      element("span", { class: "soft small" }, about.join(" · ")),
    ),
    element("pre", { class: "text" }, text === "" ? element("span", { class: "soft" }, "(empty)") : text),
    tools,
  );
}

/** The siblings next to each other: the same task, other responses, other rewards. */
async function drawSiblings(main, answer, page) {
  const { siblings, sample } = answer;
  const shown = siblings.slice(0, MOST_SIBLINGS);
  const details = await Promise.all(
    shown.map(({ id }) => (id === sample.id ? answer : page.api(`samples/${id}`, { tokens_limit: 1 }))),
  );
  const prompt = answer.conversation.filter(({ turn, role }) => turn === null && role !== "assistant");
  const cards = details.map((each) => siblingCard(each, each.sample.id === sample.id, page));
  const columns = [
    {
      title: "Attempt",
      cell: (row) => link(page.link("samples", [row.id], { view: "siblings" }), `${row.group}.${row.sibling}`),
    },
    { title: "Reward", align: "right", cell: ({ reward }) => number(reward) },
    { title: "Advantage", align: "right", cell: ({ advantage }) => signed(advantage) },
    { title: "Outcome", cell: ({ outcome }) => outcomeTag(outcome) },
    { title: "Tokens", align: "right", cell: ({ tokens }) => count(tokens) },
    { title: "Response", cell: ({ response }) => element("span", { class: "mono" }, (response ?? "–").slice(0, 80)) },
  ];
  replace(
    main,
    prompt.map((part) => oneMessage(part, null)),
    element("div", { class: "cards" }, cards),
    siblings.length > MOST_SIBLINGS
      ? panel(`All ${siblings.length} siblings`, plainTable(columns, siblings, { label: "Siblings" }))
      : null,
  );
}

function siblingCard({ sample, conversation, score }, current, page) {
  const said = conversation.filter(({ turn, role }) => turn !== null || role === "assistant");
  const head = element(
    "header",
    {},
    link(page.link("samples", [sample.id], page.query), `${sample.group}.${sample.sibling}`),
    " ",
    element("strong", {}, `reward ${number(sample.reward)}`),
    " ",
    element(
      "span",
      { class: "soft small" },
      `advantage ${signed(sample.advantage)} · ${plural(sample.tokens, "token")}`,
    ),
    " ",
    outcomeTag(sample.outcome),
  );
  const texts = said.map(({ role, text }) =>
    element("pre", { class: `text ${role === "assistant" ? "" : "soft"}` }, text || "(empty)"),
  );
  return element(
    "article",
    { class: `panel card ${current ? "current" : ""}`, "aria-current": current ? "true" : null },
    head,
    texts,
    sample.reason ? element("p", { class: "bad small" }, sample.reason) : null,
    score?.comment ? element("p", { class: "soft small" }, score.comment) : null,
  );
}
