// The tokens of an attempt, coloured by a quantity.

import { element, replace, visible } from "./dom.js";
import { count, number, percent, plural, signed } from "./format.js";
import { choices, link, message, panel } from "./widgets.js";

const COLOURS = [
  ["logprob", "logprob"],
  ["version", "version"],
  ["advantage", "advantage"],
  ["mismatch", "mismatch"],
  ["turn", "turn"],
];
const LEVELS = [0.05, 0.22, 0.7, 1.6, 3, 5];
const MISMATCH = [0.001, 0.005, 0.02, 0.1, 0.5, 2];
const PAGE = 4000;

/** Fills `node`; the quantity and the first token are in the link. */
export function drawTokens(node, answer, page) {
  const { tokens } = answer;
  if (!tokens || tokens.total === 0) {
    replace(
      node,
      message(
        "info",
        answer.pruned
          ? "The tokens were pruned (journal.keep_steps); raise it to keep those of more steps."
          : "No token was sampled.",
      ),
    );
    return;
  }
  const by = COLOURS.some(([name]) => name === page.query.colour) ? page.query.colour : "logprob";
  const colour = painter(by, answer);
  const spans = tokens.id.map((id, index) => oneToken(tokens, index, id, colour));
  replace(
    node,
    panel(
      null,
      element(
        "div",
        { class: "top" },
        choices("Colour of the tokens", COLOURS, by, (value) =>
          page.change({ colour: value === "logprob" ? "" : value }),
        ),
        legend(by, answer),
      ),
      element("div", { class: "tokens" }, spans),
      pages(tokens, page),
    ),
  );
}

function oneToken(tokens, index, id, colour) {
  const text = tokens.text[index];
  const logprob = tokens.logprob[index];
  const sampled = logprob !== null;
  const about = [`token ${tokens.from + index}, id ${id}, turn ${tokens.turn[index] + 1}`];
  if (sampled) about.push(`logprob ${number(logprob)}, probability ${percent(Math.exp(logprob))}`);
  about.push(sampled ? `sampled by version ${tokens.version[index]}` : "not sampled: prompt or observation");
  if (sampled && !tokens.trained[index]) about.push("not trained on");
  const shown = text === "" ? "·" : visible(text).replaceAll("\n", "↵\n");
  return element("span", { class: `token ${sampled ? colour(index) : "observed"}`, title: about.join("\n") }, shown);
}

/** A function from the index of a sampled token to the class of its colour. */
function painter(by, { tokens, advantage, mismatch }) {
  if (by === "version" || by === "turn") {
    const values = [...new Set(tokens[by].filter((value) => value !== null))].sort((a, b) => a - b);
    return (index) => `kind${values.indexOf(tokens[by][index]) % 8}`;
  }
  if (by === "advantage") {
    const size = Math.abs(advantage ?? 0);
    const level = size === 0 ? 0 : size < 0.3 ? 1 : size < 1 ? 2 : 3;
    return (index) => (tokens.trained[index] && level ? `${advantage > 0 ? "plus" : "minus"}${level}` : "heat0");
  }
  if (by === "mismatch") {
    const own = tokens.mismatch;
    return (index) => `heat${level(own ? own[index] : mismatch?.mean, MISMATCH)}`;
  }
  return (index) => `heat${level(-tokens.logprob[index], LEVELS)}`;
}

function level(value, bounds) {
  if (value === null || value === undefined) return 0;
  return bounds.filter((bound) => value >= bound).length;
}

function legend(by, { tokens, advantage, mismatch, sample }) {
  const scale = (bounds, unit) =>
    element(
      "span",
      { class: "scale" },
      bounds.map((bound, index) =>
        element("span", { class: `token heat${index + 1}` }, `${index ? "" : "from "}${number(bound)}`),
      ),
      ` ${unit}`,
    );
  if (by === "logprob")
    return element(
      "div",
      { class: "small soft" },
      "-logprob of the sampler: ",
      scale(LEVELS, "nats; the darker, the less expected."),
      " Underlined: prompt and observations.",
    );
  if (by === "advantage")
    return element(
      "div",
      { class: "small soft" },
      advantage === null
        ? "No step has assigned an advantage to this attempt."
        : `Advantage ${signed(advantage)}: the mean over the tokens, which is what the journal has.`,
    );
  if (by === "mismatch") {
    const text = mismatch
      ? `|trainer - sampler| is recorded per step: mean ${number(mismatch.mean)}, largest ${number(mismatch.max)} nats in step ${mismatch.step}. `
      : "No step has trained on this attempt, so no trainer has scored it. ";
    return element("div", { class: "small soft" }, text, mismatch ? scale(MISMATCH, "nats.") : null);
  }
  const values = [...new Set(tokens[by].filter((value) => value !== null))].sort((a, b) => a - b);
  const name = (value) => (by === "turn" ? `turn ${value + 1}` : `version ${value}`);
  return element(
    "div",
    { class: "small soft" },
    values.map((value, index) => [element("span", { class: `token kind${index % 8}` }, name(value)), " "]),
    by === "version" && sample.step ? `trained in step ${sample.step}` : "",
  );
}

function pages({ from, id, total }, page) {
  const last = from + id.length;
  if (from === 0 && last >= total) return element("p", { class: "small soft" }, plural(total, "token"));
  const at = (first) => page.link("samples", page.rest, { ...page.query, from: first || "" });
  return element(
    "p",
    { class: "small" },
    `Tokens ${count(from)} to ${count(last - 1)} of ${count(total)}. `,
    from > 0 ? link(at(Math.max(0, from - PAGE)), "Earlier tokens") : null,
    " ",
    last < total ? link(at(last), "Later tokens") : null,
  );
}
