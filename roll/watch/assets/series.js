// Series that grow: an answer with the points since an earlier one is joined to it.

/** The series of both answers; `newer.from` is the index of its first point, which replaces those from there on.
 * The lists of `older` are extended, not copied. */
export function joinSeries(older, newer) {
  if (!older || newer.from === 0) return newer;
  const length = newer.from + newer.step.length;
  const join = (before, after) => {
    if (before === null && after === null) return null;
    const kept = before ?? [];
    if (kept.length > newer.from) kept.length = newer.from;
    while (kept.length < newer.from) kept.push(null);
    if (after) kept.push(...after);
    while (kept.length < length) kept.push(null);
    return kept;
  };
  const series = {};
  for (const [name, points] of Object.entries(newer.series)) {
    const before = older.series[name] ?? {};
    series[name] = Object.fromEntries(
      Object.entries(points).map(([part, values]) => [part, join(before[part] ?? null, values)]),
    );
  }
  const common = ["step", "time", "tokens"].map((name) => [name, join(older[name], newer[name])]);
  return { ...newer, ...Object.fromEntries(common), from: 0, series };
}
