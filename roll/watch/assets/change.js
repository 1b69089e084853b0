// Where a curve jumps: the step from which its level differs from before by far more than its noise.

import { extent } from "./axis.js";

const WINDOW = 10;
const LEAST = 4;
const SIGNIFICANT = 5;
const LARGE = 0.1;
const BETTER = 0.6;

/** The clearest jump of a curve, as { index, x, before, after }, or null. `values` are { x, y }, in order.
 * Around a jump two levels describe the curve much better than a straight line, which a run that learns resembles. */
export function findJump(values) {
  const ys = values.map(({ y }) => y);
  if (ys.length < 2 * LEAST) return null;
  const [low, high] = extent(ys);
  const least = LARGE * Math.max(high - low, Math.abs(low), Math.abs(high));
  const noise = Math.max(noiseOf(ys), 0.02 * (high - low));
  const level = mean(ys);
  const sums = new Sums(ys.map((y) => y - level));
  let best = null;
  for (let index = LEAST; index <= ys.length - LEAST && noise > 0; index += 1) {
    const [first, end] = [Math.max(0, index - WINDOW), Math.min(ys.length, index + WINDOW)];
    const [before, after] = [sums.mean(first, index), sums.mean(index, end)];
    const change = Math.abs(after - before);
    const score = change / (noise * Math.sqrt(1 / (index - first) + 1 / (end - index)));
    if (score < SIGNIFICANT || change < least) continue;
    const residual = sums.aroundMean(first, index) + sums.aroundMean(index, end);
    const ratio = residual / sums.aroundLine(first, end);
    if (ratio > BETTER || best?.ratio < ratio) continue;
    best = { index, x: values[index].x, first, end, ratio };
  }
  if (best === null) return null;
  const { index, x, first, end } = best;
  return { index, x, before: mean(ys.slice(first, index)), after: mean(ys.slice(index, end)) };
}

/** Sums over windows of a curve whose mean is zero, each in constant time. */
class Sums {
  constructor(ys) {
    this.ys = new Float64Array(ys.length + 1);
    this.squares = new Float64Array(ys.length + 1);
    this.products = new Float64Array(ys.length + 1);
    ys.forEach((y, index) => {
      this.ys[index + 1] = this.ys[index] + y;
      this.squares[index + 1] = this.squares[index] + y * y;
      this.products[index + 1] = this.products[index] + index * y;
    });
  }

  mean(first, end) {
    return (this.ys[end] - this.ys[first]) / (end - first);
  }

  /** Sum of squares around the mean. */
  aroundMean(first, end) {
    const sum = this.ys[end] - this.ys[first];
    return Math.max(0, this.squares[end] - this.squares[first] - (sum * sum) / (end - first));
  }

  /** Sum of squares around the straight line that fits best. */
  aroundLine(first, end) {
    const length = end - first;
    const middle = (first + end - 1) / 2;
    const products = this.products[end] - this.products[first] - middle * (this.ys[end] - this.ys[first]);
    const squares = (length * (length * length - 1)) / 12;
    return this.aroundMean(first, end) - products ** 2 / squares;
  }
}

/** Standard deviation of the noise, from the differences of adjacent points. */
function noiseOf(ys) {
  const differences = new Float64Array(ys.length - 1);
  for (let index = 1; index < ys.length; index += 1) differences[index - 1] = Math.abs(ys[index] - ys[index - 1]);
  differences.sort();
  return differences[differences.length >> 1] / 0.954;
}

function mean(ys) {
  return ys.reduce((sum, y) => sum + y, 0) / ys.length;
}
