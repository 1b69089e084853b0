// Shares of a total per step, stacked.

import { extent } from "./axis.js";
import { duration, number } from "./format.js";
import { Frame } from "./frame.js";

const PIECE = 32;

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
      draw: (shapes, toX, toY) =>
        shown.forEach(({ tone }, index) => {
          const path = (numbers) => ({ d: areaPath(numbers, toY) });
          for (const numbers of areas(xs, sums[index - 1], sums[index], toX))
            shapes.add("path", `area ${tone}`, numbers, path);
        }),
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

/** The areas between two sums, as steps around each x, so that a step with much time is as wide as any other:
 * left and right edge in pixels, and the two sums, of each step. They are in pieces that meet at whole pixels: of a
 * figure that grows, only the last piece is painted again. */
function areas(xs, below, above, toX) {
  const half = halfWidth(xs, toX);
  const [start, end] = [toX(xs[0]), xs.length > 1 ? toX(xs.at(-1)) : toX(xs[0]) + half];
  const edge = (index) => Math.round(Math.min(end, Math.max(start, toX(xs[index]) - half)));
  const pieces = [];
  for (let first = 0; first < xs.length; first += PIECE) {
    const last = Math.min(xs.length, first + PIECE);
    const numbers = [];
    for (let index = first; index < last; index += 1) {
      const right = index + 1 < xs.length ? edge(index + 1) : Math.round(end);
      numbers.push(edge(index), right, above[index], below ? below[index] : 0);
    }
    pieces.push(numbers);
  }
  return pieces;
}

/** Half the mean distance of the first steps, a power of two of them: as the run grows, it rarely changes. */
function halfWidth(xs, toX) {
  if (xs.length < 2) return 20;
  const number = 2 ** Math.floor(Math.log2(xs.length - 1));
  return (toX(xs[number]) - toX(xs[0])) / number / 2;
}

function areaPath(numbers, toY) {
  const [upper, lower] = [[], []];
  for (let index = 0; index < numbers.length; index += 4) {
    const [left, right] = [numbers[index], numbers[index + 1]];
    const [top, bottom] = [tenth(toY(numbers[index + 2])), tenth(toY(numbers[index + 3]))];
    upper.push(`${left},${top}`, `${right},${top}`);
    lower.push(`${left},${bottom}`, `${right},${bottom}`);
  }
  return `M${[...upper, ...lower.reverse()].join("L")}Z`;
}

function tenth(value) {
  return Math.round(10 * value) / 10;
}
