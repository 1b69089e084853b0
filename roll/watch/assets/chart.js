// Lines with confidence bands.

import { picture } from "./dom.js";
import { extent, pad } from "./axis.js";
import { number } from "./format.js";
import { Frame } from "./frame.js";

export const NUM_TONES = 8;

/** The class of the colour of a series by its position. */
export function tone(index) {
  return `tone${index % NUM_TONES}`;
}

/** A figure with `update(series, options)`; a series is { name, tone, points, dashed, href }, a point { x, y, low, high, href, hint, note }.
 * Options: `xName`, `xFormat`, `format`, `lines`, `range` of y, `domain` of x. */
export function lineChart(settings) {
  const frame = new Frame(settings);
  const update = (series, options = {}) => {
    const shown = series.filter(({ points }) => points.some(({ y }) => Number.isFinite(y)));
    const xs = [...new Set(shown.flatMap(({ points }) => points.map(({ x }) => x)))].sort((a, b) => a - b);
    const byX = shown.map(({ points }) => new Map(points.map((point) => [point.x, point])));
    const values = shown.flatMap(({ points }) => points.flatMap(({ y, low, high }) => [y, low, high]));
    const { format = number } = options;
    frame.update(
      {
        ...options,
        x: options.domain ?? extent(xs),
        y: options.range ?? pad(extent(values)),
        xs: xs.map((x) => ({ x })),
        legend: shown.length > 1 || options.legend ? shown : [],
        summary: `${shown.length} curve${shown.length === 1 ? "" : "s"}: ${shown.map(({ name }) => name).join(", ")}.`,
        draw: (layer, toX, toY) => shown.forEach((each) => drawSeries(layer, each, toX, toY)),
        rows: (index) => readRows(shown, byX, xs[index], format),
      },
      options.sentence,
    );
  };
  return { node: frame.node, update };
}

function readRows(shown, byX, x, format) {
  return shown.flatMap(({ name, tone: colour }, index) => {
    const point = byX[index].get(x);
    if (!point || !Number.isFinite(point.y)) return [];
    const band =
      Number.isFinite(point.low) && point.low !== point.high ? ` (${format(point.low)} to ${format(point.high)})` : "";
    const text = `${format(point.y)}${band}${point.note ? `, ${point.note}` : ""}`;
    return [{ name, tone: colour, y: point.y, text, href: point.href, hint: point.hint }];
  });
}

function drawSeries(layer, series, toX, toY) {
  const points = series.points.filter(({ y }) => Number.isFinite(y));
  const banded = points.filter(({ low, high }) => Number.isFinite(low) && Number.isFinite(high));
  if (banded.length > 1) {
    const upper = banded.map(({ x, high }) => at(toX(x), toY(high)));
    const lower = banded.map(({ x, low }) => at(toX(x), toY(low))).reverse();
    layer.append(picture("path", { class: `band ${series.tone}`, d: `M${[...upper, ...lower].join("L")}Z` }));
  }
  const path = points.map(({ x, y }) => at(toX(x), toY(y))).join("L");
  layer.append(picture("path", { class: `line ${series.tone} ${series.dashed ? "dashed" : ""}`, d: `M${path}` }));
  if (points.length > 40 && !series.dots) return;
  for (const { x, y } of points)
    layer.append(picture("circle", { class: `point ${series.tone}`, cx: toX(x), cy: toY(y), r: 2.2 }));
}

function at(x, y) {
  return `${x.toFixed(1)},${y.toFixed(1)}`;
}
