// Overview: is the run learning, in which domain, since when not, and where does its time go?

import { bandChart } from "./bands.js";
import { findJump } from "./change.js";
import { lineChart, tone } from "./chart.js";
import { X_AXES, curve, heading, smooth, stepRange, xAxis } from "./curves.js";
import { element, replace } from "./dom.js";
import { count, duration, number, percent, signed } from "./format.js";
import { Cursor } from "./frame.js";
import { noticeList } from "./notices.js";
import { plainTable } from "./table.js";
import { choices, figures, link, message, panel, selection } from "./widgets.js";

const SMOOTHING = [
  ["1", "none"],
  ["5", "5 points"],
  ["15", "15 points"],
];
const FEW = 3;
const PHASES = new Set(["wait", "score", "update", "publish", "validate", "checkpoint"]);
const SMALL = [
  { title: "Tokens per second", names: [["speed/tokens_per_s", "tokens/s"]] },
  {
    title: "Staleness",
    names: [
      ["staleness/mean", "mean"],
      ["staleness/max", "largest"],
    ],
    help: "Steps between the version that sampled a token and the step that trains on it.",
  },
  {
    title: "Response length",
    names: [
      ["length/mean", "mean"],
      ["length/max", "longest"],
    ],
    help: "Sampled tokens per attempt.",
  },
  {
    title: "Entropy",
    names: [["loss/entropy", "entropy"]],
    help: "Of the next token, in nats. A fall to zero: the responses become all alike.",
  },
  {
    title: "KL to the reference",
    names: [
      ["kl/reference", "of the sampling policy"],
      ["loss/kl", "in the loss"],
    ],
  },
  {
    title: "Sampler mismatch",
    names: [
      ["sampler_mismatch/mean", "mean"],
      ["sampler_mismatch/max", "largest"],
    ],
    help: "|trainer logprob - sampler logprob| of trained tokens, in nats.",
  },
  { title: "Gradient norm", names: [["loss/grad_norm", "norm"]] },
  { title: "Truncated responses", names: [["length/truncated", "fraction"]] },
  {
    title: "Not trained on",
    names: [
      ["failed/*", ""],
      ["filtered/groups", "filtered groups"],
      ["stale/groups", "stale groups"],
    ],
    help: "Attempts by failure, and groups that were dropped, per step.",
  },
  {
    title: "Supervised fine-tuning",
    names: [
      ["sft/loss", "loss"],
      ["sft/accuracy", "held-out accuracy"],
    ],
  },
];

export async function show(root, page) {
  const cursor = new Cursor();
  const parts = {
    top: element("div", { class: "top" }),
    notices: element("div"),
    findings: element("div"),
    numbers: element("div"),
    reward: lineChart({
      title: "Reward per step",
      help: "Mean over the attempts that a step trained on; the band holds the mean with 95 % confidence.",
      cursor,
      height: 250,
    }),
    heldOut: lineChart({ title: "Held-out tasks", help: "Tasks that the run does not train on.", cursor, height: 250 }),
    domains: element("div"),
    phases: bandChart({ title: "Seconds per step, by phase of the loop", cursor, height: 200 }),
    small: SMALL.map(({ title, help }) => lineChart({ title, help, cursor, height: 150 })),
  };
  const smallPanels = parts.small.map((chart) => panel(null, chart.node));
  const heldOutPanel = panel(null, parts.heldOut.node);
  const phasePanel = panel(null, parts.phases.node);
  root.append(
    parts.top,
    parts.notices,
    parts.findings,
    parts.numbers,
    element("div", { class: "grid2" }, panel(null, parts.reward.node), heldOutPanel),
    parts.domains,
    phasePanel,
    element("div", { class: "grid2" }, smallPanels),
  );
  const update = async () => {
    const answer = await page.api("overview", { points: 500 });
    if (!page.current()) return;
    draw(parts, answer, page);
    parts.small.forEach((chart, index) => {
      smallPanels[index].hidden = !drawSmall(chart, SMALL[index].names, answer, page);
    });
    heldOutPanel.hidden = answer.held_out === null && !heldOutNames(answer).length;
    phasePanel.hidden = !answer.series.series["time/step"];
  };
  await update();
  return { update };
}

function draw(parts, answer, page) {
  const { query } = page;
  const axis = xAxis(answer.series, query.x);
  replace(
    parts.top,
    element("h1", {}, "Overview"),
    element(
      "div",
      { class: "tools" },
      selection("Smoothing", SMOOTHING, query.smooth ?? "1", (value) =>
        page.change({ smooth: value === "1" ? "" : value }),
      ),
      choices("x axis", X_AXES, query.x ?? "step", (value) => page.change({ x: value === "step" ? "" : value })),
    ),
  );
  drawNotices(parts.notices, answer, page);
  replace(parts.numbers, panel(null, figures(numbersOf(answer))));
  const rewards = rewardCurves(answer, axis, page);
  const jumps = jumpsOf(rewards, answer);
  drawFindings(parts.findings, jumps, page);
  const options = { ...axis, heading: heading(answer.series, axis), format: number };
  const lines = jumps.map(({ series, jump }) => ({
    x: jump.x,
    text: `${series.name}: ${number(jump.before)} to ${number(jump.after)}`,
    tone: series.tone,
    href: samplesLink(page, series.domain, jump.step),
  }));
  const width = Number(query.smooth ?? 1);
  const sentence = "No step is complete yet; the first reward appears when one is.";
  parts.reward.update(
    rewards.map((series) => smooth(series, width)),
    { ...options, lines, sentence },
  );
  const heldOut = heldOutNames(answer).map((name, index) => heldOutCurve(name, index, answer, axis));
  parts.heldOut.update(
    heldOut.filter((series) => series),
    { ...options, legend: true, sentence: "No validation yet; it is set by validation.every." },
  );
  drawDomains(parts.domains, answer, rewards, jumps, page);
  drawPhases(parts.phases, answer, axis, options);
}

function drawNotices(node, { state, notices }, page) {
  const parts = [];
  if (state.salvaged) parts.push(message("warn", state.salvaged));
  if (state.index?.error) parts.push(message("bad", state.index.error));
  if (state.state === "silent")
    parts.push(
      message(
        "warn",
        `Nothing was written for ${duration(state.quiet_s)}: the run was killed, or is in a long phase. Its log is controller.log; roll resume continues it.`,
      ),
    );
  const all = page.query.notices === "all";
  const shown = all ? notices : notices.slice(0, FEW);
  if (shown.length) parts.push(noticeList(shown, page.link));
  if (notices.length > FEW) {
    const text = all ? "Fewer notices" : `All ${notices.length} notices`;
    parts.push(
      element(
        "p",
        {},
        element("button", { type: "button", onclick: () => page.change({ notices: all ? "" : "all" }) }, text),
      ),
    );
  }
  replace(node, parts);
}

function numbersOf({ state, series, numbers, outcomes }) {
  const last = (name) => series.series[name]?.mean.findLast((value) => value !== null && value !== undefined);
  const spent = last("time/step");
  return [
    ["Step", count(state.step), state.steps ? `of ${count(state.steps)}` : ""],
    ["Reward, last step", number(last("reward/mean"))],
    ["Tokens per second", number(last("speed/tokens_per_s"))],
    ["Seconds per step", spent === undefined ? null : duration(spent)],
    ["Staleness", number(last("staleness/mean")), "", "Mean over the tokens of the newest step, in steps."],
    ["Attempts", count(numbers.attempts)],
    ["Trained", count(outcomes.trained ?? 0)],
    ["Failed", count(outcomes.failed ?? 0)],
    ["Tokens sampled", count(numbers.tokens)],
    ["Wall clock", duration(numbers.wall_s)],
  ].filter(([, value]) => value !== null && value !== "–");
}

function samplesLink(page, domain, step) {
  return page.link("samples", [], { domain, step });
}

/** One curve per domain; a run with one domain has the curve of all attempts. */
function rewardCurves(answer, axis, page) {
  const names = answer.domains
    .map(({ domain }) => domain)
    .filter((domain) => answer.series.series[`domain/${domain}/reward`]);
  const link = (domain) => (first, last) => samplesLink(page, domain, stepRange(first, last));
  const curves = names.map((domain, index) =>
    curve(answer.series, `domain/${domain}/reward`, {
      label: domain,
      colour: index,
      axis,
      link: link(domain),
      hint: `samples of this step in ${domain}`,
      domain,
      href: page.link("samples", [], { domain }),
    }),
  );
  const shown = curves.filter((series) => series);
  if (shown.length > 1) return shown;
  const only = shown.length ? shown[0].domain : undefined;
  return [
    curve(answer.series, "reward/mean", { label: only ?? "reward", axis, link: link(only), domain: only }),
  ].filter((series) => series);
}

function jumpsOf(rewards, answer) {
  return rewards
    .map((series) => ({ series, jump: findJump(series.points) }))
    .filter(({ jump }) => jump)
    .map(({ series, jump }) => ({
      series,
      jump: { ...jump, step: firstStep(series.points[jump.index].step, answer) },
    }));
}

function firstStep(step, { series: { bucket } }) {
  return bucket > 1 ? stepRange(step - bucket + 1, step) : String(step);
}

function drawFindings(node, jumps, page) {
  const rows = jumps.map(({ series, jump }) => {
    const fell = jump.after < jump.before;
    const name = series.domain === undefined ? "The reward" : ["The reward of ", element("strong", {}, series.domain)];
    const change = [
      ` ${fell ? "fell" : "rose"} suddenly `,
      element("strong", {}, `at step ${jump.step}`),
      `, from ${number(jump.before)} to ${number(jump.after)}, each the mean of up to ten steps. `,
    ];
    const before = stepRange(
      Math.max(1, Number(String(jump.step).split(":")[0]) - 1),
      Math.max(1, Number(String(jump.step).split(":")[0]) - 1),
    );
    return message(
      fell ? "bad" : "warn",
      name,
      change,
      "Read what changed: ",
      link(samplesLink(page, series.domain, jump.step), `samples of step ${jump.step}`),
      " and ",
      link(samplesLink(page, series.domain, before), `of the step before`),
      ".",
    );
  });
  replace(node, rows);
}

/** A domain has the same colour as in the chart of rewards. */
function heldOutCurve(name, index, answer, axis) {
  const label = name.replace("validation/", "");
  const place = answer.domains.findIndex(({ domain }) => label.startsWith(`${domain}/`));
  return curve(answer.series, name, { label, colour: place < 0 ? index : place, axis, dots: true });
}

/** Accuracy where a validation has it, or else the reward; per domain where there are several. */
function heldOutNames(answer) {
  const names = Object.keys(answer.series.series);
  for (const kind of ["accuracy", "reward"]) {
    const all = names.filter((name) => name.startsWith("validation/") && name.endsWith(`/${kind}`));
    const domains = all.filter((name) => name !== `validation/${kind}`);
    if (all.length) return domains.length > 1 ? domains : all.slice(0, 1);
  }
  return [];
}

function drawDomains(node, answer, rewards, jumps, page) {
  const rows = answer.domains;
  if (rows.length === 0) {
    replace(node);
    return;
  }
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
      title: "First reward",
      align: "right",
      help: "Mean over the first steps.",
      cell: ({ reward_first: value }) => number(value),
    },
    {
      title: "Last reward",
      align: "right",
      help: "Mean over the last steps.",
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
  replace(node, panel("Domains", plainTable(columns, rows, { label: "Domains" })));
}

function changeCell({ reward_first: first, reward_last: last }) {
  if (first === null || last === null) return "–";
  return element("span", { class: last < first ? "bad" : "good" }, signed(last - first));
}

function jumpCell(jump, domain, page) {
  if (!jump) return element("span", { class: "soft" }, "none");
  return link(
    samplesLink(page, domain, jump.step),
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

function drawPhases(chart, { series, phases }, axis, options) {
  const kept = axis.values
    .map((x, index) => ({ x, index }))
    .filter(({ x, index }) => x !== null && (series.series["time/step"]?.mean[index] ?? null) !== null);
  const bands = phases
    .filter((name) => series.series[name])
    .map((name) => {
      const phase = name.replace("time/", "");
      return {
        name: phase,
        tone: `tone-${PHASES.has(phase) ? phase : "other"}`,
        values: kept.map(({ index }) => series.series[name].mean[index] ?? 0),
      };
    });
  chart.update(
    kept.map(({ x }) => x),
    bands,
    { xName: options.xName, xFormat: options.xFormat },
  );
}

function drawSmall(chart, names, answer, page) {
  const axis = xAxis(answer.series, page.query.x);
  const link = (first, last) => samplesLink(page, undefined, stepRange(first, last));
  const series = names
    .flatMap(([pattern, label]) => {
      if (!pattern.endsWith("*")) return [[pattern, label]];
      return Object.keys(answer.series.series)
        .filter((name) => name.startsWith(pattern.slice(0, -1)))
        .map((name) => [name, name.slice(pattern.length - 1).replaceAll("_", " ")]);
    })
    .map(([name, label], index) => curve(answer.series, name, { label, colour: index, axis, link }))
    .filter((each) => each);
  const width = Number(page.query.smooth ?? 1);
  chart.update(
    series.map((each) => smooth(each, width)),
    { ...axis, heading: heading(answer.series, axis) },
  );
  return series.length > 0;
}
