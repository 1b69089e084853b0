// Versions: publications of weights, with digests, canaries and times.

import { bandChart } from "./bands.js";
import { element, replace } from "./dom.js";
import { clock, count, duration } from "./format.js";
import { plainTable } from "./table.js";
import { figures, link, panel, tag } from "./widgets.js";

const LIMIT = 200;
const TONES = { hold: "tone-wait", send: "tone-publish", receive: "tone-generate", canary: "tone-validate" };

export async function show(root, page) {
  const about = element("div");
  const chart = bandChart({ title: "Duration of each publication, by part", height: 160 });
  const chartPanel = panel(null, chart.node);
  const table = element("div");
  root.append(
    element(
      "div",
      { class: "top" },
      element("h1", {}, "Versions"),
      element("span", { class: "about" }, "Each publication of weights to the generators."),
    ),
    about,
    chartPanel,
    table,
  );
  const update = async () => {
    const answer = await page.api("versions", { before: page.query.before, limit: LIMIT });
    if (page.current()) draw(answer, { about, chart, chartPanel, table }, page);
  };
  await update();
  return { update };
}

function draw({ versions, next }, { about, chart, chartPanel, table }, page) {
  const [newest] = versions;
  const refused = versions.reduce((sum, { refused_updates: number }) => sum + (number ?? 0), 0);
  replace(
    about,
    newest
      ? panel(
          null,
          figures([
            ["Newest version", count(newest.version)],
            ["Of step", count(newest.step)],
            ["Published", clock(newest.time)],
            ["Took", duration(total(newest))],
            ["Canary", canary(newest)],
            ["Refused updates", count(refused), "among those below"],
          ]),
        )
      : null,
  );
  const ordered = [...versions].reverse();
  const parts = [...new Set(ordered.flatMap(({ seconds }) => Object.keys(seconds)))];
  const bands = parts.map((name, index) => ({
    name,
    tone: TONES[name] ?? `tone${index % 8}`,
    values: ordered.map(({ seconds }) => seconds[name] ?? 0),
  }));
  chart.update(() => [ordered.map(({ version }) => version), bands, { xName: "version" }]);
  chartPanel.hidden = bands.length === 0;
  const older = next === null ? null : link(page.link("versions", [], { before: next }), "Older versions");
  replace(
    table,
    panel(
      null,
      plainTable(columns(parts, page), versions, {
        label: "Versions",
        sentence: "No weights were published yet; the first publication is before step 1.",
      }),
      older,
    ),
  );
}

function columns(parts, page) {
  return [
    { title: "Version", align: "right", cell: ({ version }) => count(version) },
    { title: "Step", align: "right", cell: ({ step }) => link(page.link("samples", [], { step }), count(step)) },
    { title: "Published", cell: ({ time }) => clock(time) },
    {
      title: "Digest",
      help: "Every receiver attested it.",
      cell: ({ digest }) => element("code", { title: digest }, shorten(digest)),
    },
    {
      title: "Canary",
      help: "The generators gave the replies that the trainer expects of these weights.",
      cell: canary,
    },
    ...parts.map((name) => ({ title: name, align: "right", cell: ({ seconds }) => duration(seconds[name]) })),
    {
      title: "Resumed",
      align: "right",
      help: "Replies that continued with this version, and tokens prefilled again.",
      cell: ({ resumed_requests: requests, prefilled_tokens: tokens }) =>
        requests ? `${count(requests)} (${count(tokens)} tokens)` : "0",
    },
    {
      title: "Attempts",
      align: "right",
      help: "Attempts with tokens of this version.",
      cell: ({ version, attempts }) => link(page.link("samples", [], { version }), count(attempts)),
    },
    {
      title: "",
      cell: ({ void: undone, refused_updates: refused }) => [
        undone ? tag("rolled back", "warn") : null,
        refused ? tag("update refused", "bad") : null,
      ],
    },
  ];
}

function canary({ canary: passed }) {
  return passed ? tag("passed", "good") : element("span", { class: "soft" }, "none");
}

function total({ seconds }) {
  return Object.values(seconds).reduce((sum, value) => sum + value, 0);
}

function shorten(digest) {
  return digest.length > 34 ? `${digest.slice(0, 33)}…` : digest;
}
