// Where a curve jumps: the step from which its level differs from before by far more than its noise.

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
  const range = spread(ys);
  const least = LARGE * Math.max(range, ...ys.map(Math.abs));
  const noise = Math.max(noiseOf(ys), 0.02 * range);
  let best = null;
  for (let index = LEAST; index <= ys.length - LEAST && noise > 0; index += 1) {
    const before = ys.slice(Math.max(0, index - WINDOW), index);
    const after = ys.slice(index, index + WINDOW);
    const change = Math.abs(mean(after) - mean(before));
    const score = change / (noise * Math.sqrt(1 / before.length + 1 / after.length));
    const residual = aroundMean(before) + aroundMean(after);
    const line = aroundLine([...before, ...after]);
    if (score < SIGNIFICANT || change < least || residual > BETTER * line || best?.ratio < residual / line) continue;
    best = { index, x: values[index].x, before: mean(before), after: mean(after), ratio: residual / line };
  }
  return best;
}

/** Standard deviation of the noise, from the differences of adjacent points. */
function noiseOf(ys) {
  const differences = ys.slice(1).map((y, index) => Math.abs(y - ys[index]));
  differences.sort((a, b) => a - b);
  return differences[differences.length >> 1] / 0.954;
}

/** Sum of squares around the mean. */
function aroundMean(ys) {
  const level = mean(ys);
  return ys.reduce((sum, y) => sum + (y - level) ** 2, 0);
}

/** Sum of squares around the straight line that fits best. */
function aroundLine(ys) {
  const middle = (ys.length - 1) / 2;
  const level = mean(ys);
  let [products, squares] = [0, 0];
  ys.forEach((y, index) => {
    products += (index - middle) * (y - level);
    squares += (index - middle) ** 2;
  });
  return aroundMean(ys) - products ** 2 / squares;
}

function spread(ys) {
  return Math.max(...ys) - Math.min(...ys);
}

function mean(ys) {
  return ys.reduce((sum, y) => sum + y, 0) / ys.length;
}
