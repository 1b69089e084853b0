// Workers as lanes: one row per worker, one coloured span per activity, time to the right.

import { element, picture, replace } from "./dom.js";
import { marks, scale } from "./axis.js";
import { duration } from "./format.js";

const LANE = 24;
const LABEL = 60;
const MARGIN = { left: 150, right: 14, top: 18, bottom: 22 };
const TONES = [
  ["idle", "wait"],
  ["wait", "wait"],
  ["generat", "generate"],
  ["sampl", "generate"],
  ["scor", "score"],
  ["reward", "score"],
  ["update", "update"],
  ["train", "update"],
  ["publish", "publish"],
  ["receive", "publish"],
  ["load", "publish"],
  ["validat", "validate"],
  ["checkpoint", "checkpoint"],
  ["save", "checkpoint"],
  ["env", "environment"],
];

/** The class of the colour of an activity. */
export function activityTone(activity) {
  const prefix = TONES.find(([start]) => activity.startsWith(start));
  return `tone-${prefix ? prefix[1] : "other"}`;
}

/** A figure with `update(answer)`, for an answer of the scheduler. */
export function laneChart() {
  const svg = picture("svg", {
    class: "chart lanes",
    role: "img",
    "aria-label": "Activities of the workers over time",
  });
  const legend = element("ul", { class: "legend" });
  const readout = element("p", { class: "small soft", role: "status" }, "Move over a span to read it.");
  const plot = element("div", { class: "plot" }, svg);
  const node = element(
    "figure",
    { class: "figure" },
    element("figcaption", {}, element("h3", {}, "Workers"), legend),
    plot,
    readout,
  );
  let shown = null;
  const draw = () => shown && plot.clientWidth > 0 && drawLanes(svg, plot.clientWidth, shown, readout);
  new ResizeObserver(draw).observe(plot);
  const update = (answer) => {
    shown = answer;
    const names = [
      ...new Map(answer.activities.map((name) => [activityTone(name), name.startsWith("idle") ? "waiting" : name])),
    ];
    replace(
      legend,
      names.map(([tone, name]) => element("li", { class: `entry ${tone}` }, name)),
    );
    draw();
  };
  return { node, update };
}

function drawLanes(svg, width, answer, readout) {
  const {
    lanes,
    window: { from, to },
    activities,
  } = answer;
  const height = MARGIN.top + MARGIN.bottom + LANE * lanes.length;
  const toX = scale(from, to, MARGIN.left, width - MARGIN.right);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  const rows = lanes.map((lane, index) =>
    oneLane(lane, MARGIN.top + index * LANE, { toX, activities, from, width, readout }),
  );
  replace(svg, rows, stepMarks(answer, toX, height, width), timeAxis(from, to, toX, height, width));
}

function oneLane(lane, y, { toX, activities, from, width, readout }) {
  const group = picture("g", { class: "lane" });
  group.append(picture("text", { x: MARGIN.left - 8, y: y + 15, "text-anchor": "end" }, lane.worker));
  for (const [start, end, index] of lane.spans) {
    const activity = activities[index];
    const left = Math.max(MARGIN.left, toX(start));
    const right = Math.min(width - MARGIN.right, toX(end));
    const tone = activityTone(activity);
    const bar = picture("rect", {
      class: `span ${tone} ${tone === "tone-wait" ? "idle" : ""}`,
      x: left,
      y: y + 3,
      width: Math.max(0.6, right - left),
      height: LANE - 6,
    });
    bar.addEventListener("pointerenter", () =>
      replace(
        readout,
        `${lane.worker}: ${activity}, ${duration(end - start)}, from ${duration(start - from)} to ${duration(end - from)} of the window`,
      ),
    );
    group.append(bar);
  }
  return group;
}

/** A line where each step starts; its number where there is room. */
function stepMarks({ steps, window: { from, to } }, toX, height, width) {
  let free = MARGIN.left;
  return steps
    .filter(({ start }) => start >= from && start <= to)
    .map(({ step, start }) => {
      const x = toX(start);
      const line = picture("line", { class: "cursor", x1: x, x2: x, y1: MARGIN.top - 4, y2: height - MARGIN.bottom });
      if (x < free || (x + LABEL > width && free > width - LABEL)) return line;
      free = x + LABEL;
      const place = x + LABEL > width ? { x: width, "text-anchor": "end" } : { x: x + 2 };
      return [line, picture("text", { ...place, y: MARGIN.top - 7 }, `step ${step}`)];
    });
}

function timeAxis(from, to, toX, height, width) {
  return marks(0, to - from, 8).map((value) => {
    const x = toX(from + value);
    const place = x + LABEL / 2 > width ? { x: width, "text-anchor": "end" } : { x, "text-anchor": "middle" };
    return picture("text", { ...place, y: height - 6 }, duration(value));
  });
}
