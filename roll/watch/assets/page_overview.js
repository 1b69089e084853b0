// Overview: is the run learning, in which domain, since when not, and where does its time go?

import { bandChart } from "./bands.js";
import { findJump } from "./change.js";
import { lineChart } from "./chart.js";
import { X_AXES, curve, heading, smooth, stepRange, xAxis } from "./curves.js";
import { drawDomains } from "./domains.js";
import { element, redraw } from "./dom.js";
import { count, duration, number } from "./format.js";
import { Cursor } from "./frame.js";
import { noticeList } from "./notices.js";
import { joinSeries } from "./series.js";
import { choices, link, message, panel, selection, showFigures } from "./widgets.js";

const SMOOTHING = [
  ["1", "none"],
  ["5", "5 points"],
  ["15", "15 points"],
];
const FEW = 3;
/** A figure has about 450 pixels. */
const POINTS = 300;
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
    numbers: element("section", { class: "panel" }),
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
  const shown = { answer: null, parts, smallPanels, heldOutPanel, phasePanel };
  parts.top.append(element("h1", {}, "Overview"), tools(page));
  take(shown, await page.api("overview", { points: POINTS }), page);
  const follow = (controller, onState) =>
    page.follow("overview", { points: POINTS, cursor: shown.answer.cursor }, controller, (newer) => {
      if (page.current() && !newer.unchanged) take(shown, newer, page);
      return onState(newer.unchanged ? shown.answer.state : newer.state);
    });
  return { follow };
}

function tools(page) {
  const { query } = page;
  return element(
    "div",
    { class: "tools" },
    selection("Smoothing", SMOOTHING, query.smooth ?? "1", (value) =>
      page.change({ smooth: value === "1" ? "" : value }),
    ),
    choices("x axis", X_AXES, query.x ?? "step", (value) => page.change({ x: value === "step" ? "" : value })),
  );
}

/** Join an answer to what is shown, and draw what it changes. */
function take(shown, newer, page) {
  const { answer: older } = shown;
  const grown = newer.series.cursor !== older?.series.cursor || newer.domains.length !== older.domains.length;
  const answer = {
    ...newer,
    series: grown ? joinSeries(older?.series, newer.series) : older.series,
    notices: newer.notices ?? older.notices,
  };
  shown.answer = answer;
  drawNotices(shown.parts.notices, answer, page);
  showFigures(shown.parts.numbers, numbersOf(answer));
  const { rewards, jumps } = grown ? findJumps(answer, page) : shown;
  Object.assign(shown, { rewards, jumps });
  drawDomains(shown.parts.domains, answer, rewards, jumps, page, older === null);
  if (grown) drawFigures(shown, page);
}

function findJumps(answer, page) {
  const rewards = rewardCurves(answer, xAxis(answer.series, page.query.x), page);
  return { rewards, jumps: jumpsOf(rewards, answer) };
}

function drawFigures({ answer, rewards, jumps, parts, smallPanels, heldOutPanel, phasePanel }, page) {
  const axis = xAxis(answer.series, page.query.x);
  const options = { ...axis, heading: heading(answer.series, axis), format: number };
  drawFindings(parts.findings, jumps, page);
  const lines = jumps.map(({ series, jump }) => ({
    x: jump.x,
    text: `${series.name}: ${number(jump.before)} to ${number(jump.after)}`,
    tone: series.tone,
    href: samplesLink(page, series.domain, jump.step),
  }));
  const width = Number(page.query.smooth ?? 1);
  parts.reward.update(
    () => [rewards.map((series) => smooth(series, width)), { ...options, lines }],
    "No step is complete yet; the first reward appears when one is.",
  );
  const heldOut = heldOutNames(answer);
  parts.heldOut.update(
    () => [
      heldOut.map((name, index) => heldOutCurve(name, index, answer, axis)).filter((series) => series),
      { ...options, legend: true },
    ],
    "No validation yet; it is set by validation.every.",
  );
  heldOutPanel.hidden = heldOut.length === 0;
  phasePanel.hidden = !hasValues(answer, "time/step");
  parts.phases.update(() => phaseBands(answer, axis, options));
  parts.small.forEach((chart, index) => {
    const curves = smallCurves(SMALL[index].names, answer);
    smallPanels[index].hidden = !curves.some(([name]) => hasValues(answer, name));
    chart.update(() => [smallSeries(curves, answer, axis, page), options]);
  });
}

function hasValues({ series }, name) {
  return series.series[name]?.mean.some((value) => value !== null) ?? false;
}

function drawNotices(node, answer, page) {
  const { state, notices } = answer;
  const silent = state.state === "silent" ? duration(state.quiet_s) : "";
  redraw(node, [state.salvaged, state.index.error, silent, notices], () => noticeParts(answer, page));
}

function noticeParts({ state, notices }, page) {
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
  return parts;
}

function numbersOf({ state, series, numbers }) {
  const last = (name) => series.series[name]?.mean.findLast((value) => value !== null && value !== undefined);
  const spent = last("time/step");
  return [
    ["Step", count(state.step), state.steps ? `of ${count(state.steps)}` : ""],
    ["Reward, last step", number(last("reward/mean"))],
    ["Tokens per second", number(last("speed/tokens_per_s"))],
    ["Seconds per step", spent === undefined ? null : duration(spent)],
    ["Staleness", number(last("staleness/mean")), "", "Mean over the tokens of the newest step, in steps."],
    ["Attempts", count(numbers.attempts)],
    ["Trained", count(numbers.trained)],
    ["Failed", count(numbers.failed)],
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
  const key = jumps.map(({ series, jump }) => [series.domain, jump.step, number(jump.before), number(jump.after)]);
  redraw(node, key, () => findings(jumps, page));
}

function findings(jumps, page) {
  return jumps.map(({ series, jump }) => {
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

function phaseBands({ series, phases }, axis, options) {
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
  return [kept.map(({ x }) => x), bands, { xName: options.xName, xFormat: options.xFormat }];
}

/** Name and label of each metric of a small figure. */
function smallCurves(names, { series }) {
  return names.flatMap(([pattern, label]) => {
    if (!pattern.endsWith("*")) return [[pattern, label]];
    return Object.keys(series.series)
      .filter((name) => name.startsWith(pattern.slice(0, -1)))
      .map((name) => [name, name.slice(pattern.length - 1).replaceAll("_", " ")]);
  });
}

function smallSeries(curves, answer, axis, page) {
  const link = (first, last) => samplesLink(page, undefined, stepRange(first, last));
  const width = Number(page.query.smooth ?? 1);
  return curves
    .map(([name, label], index) => curve(answer.series, name, { label, colour: index, axis, link }))
    .filter((each) => each)
    .map((each) => smooth(each, width));
}
