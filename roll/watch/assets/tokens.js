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
  if (known(tokens.advantage[index])) about.push(`advantage ${signed(tokens.advantage[index])}`);
  if (known(tokens.mismatch[index])) about.push(`|trainer - sampler| ${number(tokens.mismatch[index])}`);
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
    const own = tokens.advantage.some(known);
    return (index) => signOf(own ? tokens.advantage[index] : tokens.trained[index] ? advantage : null);
  }
  if (by === "mismatch") {
    const own = tokens.mismatch.some(known);
    return (index) => `heat${level(own ? tokens.mismatch[index] : mismatch?.mean, MISMATCH)}`;
  }
  return (index) => `heat${level(-tokens.logprob[index], LEVELS)}`;
}

/** The class of an advantage: its sign and its size. */
function signOf(advantage) {
  const size = Math.abs(advantage ?? 0);
  const step = size === 0 ? 0 : size < 0.3 ? 1 : size < 1 ? 2 : 3;
  return step ? `${advantage > 0 ? "plus" : "minus"}${step}` : "heat0";
}

function known(value) {
  return value !== null && value !== undefined;
}

function level(value, bounds) {
  if (!known(value)) return 0;
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
  if (by === "advantage") return element("div", { class: "small soft" }, aboutAdvantage(tokens, advantage));
  if (by === "mismatch")
    return element(
      "div",
      { class: "small soft" },
      aboutMismatch(tokens, mismatch),
      mismatch || tokens.mismatch.some(known) ? scale(MISMATCH, "nats.") : null,
    );
  const values = [...new Set(tokens[by].filter((value) => value !== null))].sort((a, b) => a - b);
  const name = (value) => (by === "turn" ? `turn ${value + 1}` : `version ${value}`);
  return element(
    "div",
    { class: "small soft" },
    values.map((value, index) => [element("span", { class: `token kind${index % 8}` }, name(value)), " "]),
    by === "version" && sample.step ? `trained in step ${sample.step}` : "",
  );
}

function aboutAdvantage(tokens, mean) {
  if (mean === null) return "No step has assigned an advantage to this attempt.";
  if (tokens.advantage.some(known)) return `Advantage of each token; their mean is ${signed(mean)}.`;
  return `Advantage ${signed(mean)}: the mean over the tokens; the journal does not have those of single tokens.`;
}

function aboutMismatch(tokens, mismatch) {
  if (tokens.mismatch.some(known)) return "|trainer - sampler| of each token's logprob: ";
  if (!mismatch) return "No step has trained on this attempt, so no trainer has scored it. ";
  const { mean, max, step } = mismatch;
  const why = "This step has only one update, so the logprobs of its trainer are not recorded per token. ";
  return `${why}|trainer - sampler| of step ${step}: mean ${number(mean)}, largest ${number(max)} nats. `;
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
