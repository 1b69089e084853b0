// Numbers, times and durations as text.

const NONE = "–";
const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** Four significant digits at most; a dash for a value that does not exist. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return count(value);
  if (size >= 1e6 || (size > 0 && size < 1e-4)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

/** A whole number with separators. */
export function count(value) {
  return value === null || value === undefined ? NONE : WHOLE.format(Math.round(value));
}

/** A number with its sign. */
export function signed(value) {
  return value === null || value === undefined ? NONE : `${value > 0 ? "+" : ""}${number(value)}`;
}

/** A fraction between 0 and 1 in per cent. */
export function percent(value) {
  return value === null || value === undefined ? NONE : `${number(100 * value)} %`;
}

/** Seconds as the two largest units: 850 ms, 12.3 s, 4 min 10 s, 2 h 5 min, 3 d 4 h. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 0.9995) return `${number(Math.round(1e5 * seconds) / 100)} ms`;
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 2880) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  const hours = Math.round(seconds / 3600);
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** Time of day, with the date where it is not today. */
export function clock(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  const date = new Date(1000 * seconds);
  const time = date.toLocaleTimeString("en-GB");
  return date.toDateString() === new Date().toDateString() ? time : `${date.toLocaleDateString("en-CA")} ${time}`;
}

/** How long ago a time was. */
export function ago(seconds) {
  return seconds === null || seconds === undefined ? NONE : `${duration(Math.max(0, Date.now() / 1000 - seconds))} ago`;
}

/** A noun with its number: 1 group, 2 groups. */
export function plural(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}
