// Lines with confidence bands.

import { extent, pad } from "./axis.js";
import { number } from "./format.js";
import { Frame } from "./frame.js";

export const NUM_TONES = 8;
const PIECE = 32;

/** The class of the colour of a series by its position. */
export function tone(index) {
  return `tone${index % NUM_TONES}`;
}

/** A figure with `update(make, sentence)`; `make()` is called once the figure is in view, and returns [series, options].
 * A series is { name, tone, points, dashed, about }, a point { x, y, low, high }; `about(point)` gives { href, hint, note }.
 * Options: `xName`, `xFormat`, `format`, `lines`, `range` of y, `domain` of x. */
export function lineChart(settings) {
  const frame = new Frame(settings);
  const model = ([series, options = {}]) => {
    const shown = series.filter(({ points }) => points.some(({ y }) => Number.isFinite(y)));
    const xs = [...new Set(shown.flatMap(({ points }) => points.map(({ x }) => x)))].sort((a, b) => a - b);
    const byX = (index, x) => shown[index].points.findLast((point) => point.x === x);
    const values = shown.flatMap(({ points }) => points.flatMap(({ y, low, high }) => [y, low, high]));
    const { format = number } = options;
    return {
      ...options,
      x: options.domain ?? extent(xs),
      y: options.range ?? pad(extent(values)),
      xs: xs.map((x) => ({ x })),
      legend: shown.length > 1 || options.legend ? shown : [],
      summary: `${shown.length} curve${shown.length === 1 ? "" : "s"}: ${shown.map(({ name }) => name).join(", ")}.`,
      draw: (shapes, toX, toY) => shown.forEach((each) => drawSeries(shapes, each, toX, toY)),
      rows: (index) => readRows(shown, byX, xs[index], format),
    };
  };
  return { node: frame.node, update: (make, sentence) => frame.update(() => model(make()), sentence) };
}

function readRows(shown, byX, x, format) {
  return shown.flatMap(({ name, tone: colour, about }, index) => {
    const point = byX(index, x);
    if (!point || !Number.isFinite(point.y)) return [];
    const band =
      Number.isFinite(point.low) && point.low !== point.high ? ` (${format(point.low)} to ${format(point.high)})` : "";
    const { href, hint, note } = about?.(point) ?? {};
    const text = `${format(point.y)}${band}${note ? `, ${note}` : ""}`;
    return [{ name, tone: colour, y: point.y, text, href, hint }];
  });
}

/** Bands and lines are in pieces: of a curve that grows, only the last piece is built and painted again. */
function drawSeries(shapes, series, toX, toY) {
  const points = series.points.filter(({ y }) => Number.isFinite(y));
  const banded = points.filter(({ low, high }) => Number.isFinite(low) && Number.isFinite(high));
  const band = (numbers) => ({ d: bandPath(numbers, toX, toY) });
  for (const part of pieces(banded.length)) {
    const numbers = banded.slice(...part).flatMap(({ x, low, high }) => [x, low, high]);
    shapes.add("path", `band ${series.tone}`, numbers, band);
  }
  const line = (numbers) => ({ d: linePath(numbers, toX, toY) });
  for (const part of pieces(points.length)) {
    const numbers = points.slice(...part).flatMap(({ x, y }) => [x, y]);
    shapes.add("path", `line ${series.tone} ${series.dashed ? "dashed" : ""}`, numbers, line);
  }
  if (points.length > 40 && !series.dots) return;
  const place = ([x, y]) => ({ cx: toX(x), cy: toY(y), r: 2.2 });
  for (const { x, y } of points) shapes.add("circle", `point ${series.tone}`, [x, y], place);
}

/** `numbers` has x and y of each point. */
function linePath(numbers, toX, toY) {
  const path = [];
  for (let index = 0; index < numbers.length; index += 2) path.push(at(toX(numbers[index]), toY(numbers[index + 1])));
  return `M${path.join("L")}`;
}

/** `numbers` has x, low and high of each point. */
function bandPath(numbers, toX, toY) {
  const [upper, lower] = [[], []];
  for (let index = 0; index < numbers.length; index += 3) {
    const x = toX(numbers[index]);
    upper.push(at(x, toY(numbers[index + 2])));
    lower.push(at(x, toY(numbers[index + 1])));
  }
  return `M${[...upper, ...lower.reverse()].join("L")}Z`;
}

/** The pieces of a curve as [first, end] indices; each begins with the last point of the one before. */
function pieces(length) {
  const starts = [];
  for (let first = 0; first === 0 || first + 1 < length; first += PIECE) starts.push(first);
  return length ? starts.map((first) => [first, Math.min(length, first + PIECE + 1)]) : [];
}

/** A tenth of a pixel is enough; rounding is several times as fast as `toFixed`. */
function at(x, y) {
  return `${Math.round(10 * x) / 10},${Math.round(10 * y) / 10}`;
}
