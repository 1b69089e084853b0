// Scales and round marks of axes.

/** About `wanted` round numbers within a range. */
export function marks(low, high, wanted = 5) {
  if (!(high > low)) return [low];
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = power * ([1, 2, 2.5, 5].find((factor) => factor * power >= rough) ?? 10);
  const first = Math.ceil(low / size - 1e-9);
  const last = Math.floor(high / size + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * size).toPrecision(12)));
}

/** A function from a range of values to a range of pixels. */
export function scale(low, high, from, to) {
  const width = high - low || 1;
  return (value) => from + ((value - low) / width) * (to - from);
}

/** The smallest and the largest of the finite values, or [0, 1] without any. */
export function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 1];
}

/** A range with some air, which contains 0 if it is near. */
export function pad([low, high]) {
  if (low === high) return low === 0 ? [0, 1] : [low - 0.1 * Math.abs(low), high + 0.1 * Math.abs(high)];
  const air = 0.06 * (high - low);
  const nearZero = low >= 0 && low < 0.35 * high;
  return [nearZero ? 0 : low - air, high + air];
}

const FULL = 0.5;
const ROOM = 0.12;

/** The range to show: the old one while the new one fits into it and fills most of it; when it grows, with some room. */
export function settle(old, [low, high]) {
  if (!old || !(high > low)) return [low, high];
  if (low >= old[0] && high <= old[1] && high - low >= FULL * (old[1] - old[0])) return old;
  const room = ROOM * (high - low);
  return [low < old[0] && low < 0 ? low - room : low, high > old[1] ? high + room : high];
}

/** A short label of a mark: 1.5k, 2M. */
export function label(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${Number((value / 1e9).toPrecision(3))}G`;
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  return String(Number(value.toPrecision(4)));
}

/** Index of the entry whose x is nearest; the entries are sorted by x. */
export function nearest(entries, x) {
  let low = 0;
  let high = entries.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (entries[middle].x < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - entries[low - 1].x < entries[low].x - x ? low - 1 : low;
}
