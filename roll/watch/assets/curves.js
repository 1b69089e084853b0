// Series of the server as curves: x axis, confidence bands, and links from points to the samples of their steps.

import { tone } from "./chart.js";
import { clock, count, duration } from "./format.js";

export const X_AXES = [
  ["step", "steps"],
  ["tokens", "tokens"],
  ["wall", "wall clock"],
];
const Z95 = 1.96;

/** The x values of an answer of the server, with the name and format of the axis. */
export function xAxis(answer, kind) {
  const start = answer.time?.find((time) => time !== null) ?? 0;
  if (kind === "tokens") return { values: answer.tokens, xName: "tokens", xFormat: undefined };
  if (kind === "wall") {
    const values = answer.wall_s ?? answer.time.map((time) => (time === null ? null : time - start));
    return { values, xName: "time", xFormat: (value) => duration(Math.round(value)) };
  }
  return { values: answer.step, xName: "step", xFormat: undefined };
}

/** One curve: `link(first, last)` gives the address of the samples of these steps. */
export function curve(
  answer,
  name,
  { label, colour = 0, axis, link, hint = "samples of this step", extremes = true, ...rest },
) {
  const data = answer.series[name];
  if (!data) return null;
  const points = axis.values.map((x, index) => point(answer, data, index, x, extremes)).filter((entry) => entry);
  if (points.length === 0) return null;
  const about = (at) => ({
    href: link && at.step > 0 ? link(at.first, at.step) : undefined,
    hint,
    note: at.time ? clock(at.time) : "",
  });
  return { name: label ?? name, tone: typeof colour === "number" ? tone(colour) : colour, points, about, ...rest };
}

function point(answer, data, index, x, extremes) {
  const y = data.mean[index] ?? null;
  if (y === null || (x ?? null) === null) return null;
  const last = answer.step[index];
  const first = Math.max(1, last - (answer.bucket ?? 1) + 1, index > 0 ? answer.step[index - 1] + 1 : 0);
  const [low, high] = band(data, index, y, extremes);
  return { x, y, low, high, first, step: last, time: answer.time?.[index] };
}

/** The mean with 95 % confidence where its error is known; otherwise the extremes within a point of several steps. */
function band(data, index, y, extremes) {
  const error = data.error?.[index] ?? null;
  if (error !== null) return [y - Z95 * error, y + Z95 * error];
  return extremes ? [data.low?.[index], data.high?.[index]] : [];
}

/** What the readout says above the values: step, tokens and time of the point with this x. */
export function heading(answer, axis) {
  return (x) => {
    const index = axis.values.lastIndexOf(x);
    const tokens = answer.tokens?.[index];
    const bucket = answer.bucket > 1 ? ` (${answer.bucket} steps)` : "";
    return `step ${count(answer.step[index])}${bucket}${tokens ? `, ${count(tokens)} tokens` : ""}`;
  };
}

/** `3` or `3:5`: steps as the filter of samples reads them. */
export function stepRange(first, last) {
  return first === last ? String(first) : `${first}:${last}`;
}

/** A moving mean over this many points; bands shrink only by the pooling of their errors. */
export function smooth(series, width) {
  if (!series || width < 2) return series;
  const half = Math.floor(width / 2);
  const points = series.points.map((each, index) => {
    const window = series.points.slice(Math.max(0, index - half), index + half + 1);
    const y = window.reduce((sum, { y: value }) => sum + value, 0) / window.length;
    const errors = window.map(({ low, high }) => (high - low) / 2);
    const error = Math.sqrt(errors.reduce((sum, value) => sum + value * value, 0)) / window.length;
    return { ...each, y, low: y - error, high: y + error };
  });
  return { ...series, points };
}
