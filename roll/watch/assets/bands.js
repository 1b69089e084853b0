// Shares of a total per step, stacked.

import { picture } from "./dom.js";
import { extent } from "./axis.js";
import { duration, number } from "./format.js";
import { Frame } from "./frame.js";

/** A figure with `update(make)`; `make()` is called once the figure is in view, and returns [xs, series, options].
 * A series is { name, tone, values }, with one value per x. */
export function bandChart(settings) {
  const frame = new Frame(settings);
  const model = ([xs, series, options = {}]) => {
    const shown = series.filter(({ values }) => values.some((value) => value > 0));
    const sums = stack(xs.length, shown);
    const format = options.format ?? duration;
    const top = extent([0, ...(sums.at(-1) ?? [])])[1] || 1;
    return {
      ...options,
      format: options.axis ?? number,
      x: options.domain ?? extent(xs),
      y: [0, 1.04 * top],
      xs: shown.length ? xs.map((x) => ({ x })) : [],
      legend: shown,
      summary: `Shares: ${shown.map(({ name }) => name).join(", ")}.`,
      draw: (layer, toX, toY) =>
        shown.forEach((each, index) =>
          layer.append(
            picture("path", { class: `area ${each.tone}`, d: area(xs, sums[index - 1], sums[index], toX, toY) }),
          ),
        ),
      rows: (index) => readRows(shown, sums, index, format),
    };
  };
  return { node: frame.node, update: (make, sentence) => frame.update(() => model(make()), sentence) };
}

function stack(length, shown) {
  const sums = [];
  for (const { values } of shown) {
    const below = sums.at(-1);
    sums.push(Array.from({ length }, (_, index) => (below ? below[index] : 0) + Math.max(0, values[index] ?? 0)));
  }
  return sums;
}

function readRows(shown, sums, index, format) {
  const total = sums.at(-1)[index] || 1;
  return shown
    .map(({ name, tone, values }, place) => {
      const value = values[index] ?? 0;
      return { name, tone, y: sums[place][index], text: `${format(value)}, ${Math.round((100 * value) / total)} %` };
    })
    .reverse();
}

/** The area between two sums, as steps around each x, so that a step with much time is as wide as any other. */
function area(xs, below, above, toX, toY) {
  const half = xs.length > 1 ? (toX(xs.at(-1)) - toX(xs[0])) / (xs.length - 1) / 2 : 20;
  const edge = (sum, index) => {
    const y = toY(sum ? sum[index] : 0).toFixed(1);
    const left = Math.max(toX(xs[0]), toX(xs[index]) - half);
    const right = Math.min(toX(xs.at(-1)), toX(xs[index]) + half);
    return xs.length > 1 ? [left, right, y] : [toX(xs[0]), toX(xs[0]) + half, y];
  };
  const upper = xs.flatMap((_, index) => {
    const [left, right, y] = edge(above, index);
    return [`${left.toFixed(1)},${y}`, `${right.toFixed(1)},${y}`];
  });
  const lower = xs
    .flatMap((_, index) => {
      const [left, right, y] = edge(below, index);
      return [`${left.toFixed(1)},${y}`, `${right.toFixed(1)},${y}`];
    })
    .reverse();
  return `M${[...upper, ...lower].join("L")}Z`;
}
