// The frame of a chart: axes, a cursor that charts with the same x axis share, a readout, and links from its points.

import { element, picture, redraw, replace } from "./dom.js";
import { label, marks, nearest, scale, settle } from "./axis.js";
import { drawInView, drawNow } from "./in_view.js";
import { Shapes } from "./shapes.js";

const MARGIN = { left: 50, right: 14, top: 8, bottom: 24 };

/** A position on the x axis that several charts show at once. */
export class Cursor {
  #listeners = new Set();

  listen(callback) {
    this.#listeners.add(callback);
  }

  set(x, source = null) {
    for (const callback of this.#listeners) callback(x, source);
  }
}

/** A figure. `update` takes a function, which is called once the figure is in view and returns what it shows:
 * `x`, `y`: ranges; `xs`: sorted entries with `x`; `xName`; `draw(shapes, toX, toY)`; `format` of y;
 * `rows(index)`: the readout, as { name, tone, y, text, href }; `lines`: vertical marks, as { x, text, tone, href }. */
export class Frame {
  #model = null;
  #ranges = null;
  #axesKey = "";
  #shapes = new Shapes();
  #width = 0;
  #index = -1;
  #chosen = 0;

  constructor({ title, help = "", cursor = new Cursor(), height = 190 }) {
    this.height = height;
    this.cursor = cursor;
    this.legend = element("ul", { class: "legend" });
    this.svg = picture("svg", { class: "chart", tabindex: "0", role: "img", height, "aria-label": title });
    this.readout = element("div", { class: "readout", hidden: true, "aria-hidden": "true" });
    this.plot = element("div", { class: "plot" }, this.svg, this.readout);
    this.empty = element("p", { class: "empty", hidden: true });
    const heading = element("h3", { title: help }, title);
    this.node = element(
      "figure",
      { class: "figure" },
      element("figcaption", {}, heading, this.legend),
      this.plot,
      this.empty,
    );
    this.title = title;
    new ResizeObserver(() => this.#resize()).observe(this.plot);
    this.svg.addEventListener("pointermove", (event) => this.#point(event));
    this.svg.addEventListener("pointerleave", () => this.cursor.set(null, this));
    this.svg.addEventListener("click", (event) => this.#click(event));
    this.svg.addEventListener("keydown", (event) => this.#key(event));
    this.svg.addEventListener("blur", () => this.cursor.set(null, this));
    cursor.listen((x, source) => this.#move(x, source));
  }

  /** Show other data; without any, a sentence. */
  update(make, sentence = "No data yet.") {
    drawInView(this.node, () => this.#show(make(), sentence));
  }

  #show(model, sentence) {
    this.#model = model;
    const empty = model.xs.length === 0;
    if (this.plot.hidden !== empty) this.plot.hidden = empty;
    if (this.empty.hidden === empty) this.empty.hidden = !empty;
    const entries = empty ? [] : (model.legend ?? []).map(({ name, tone, href }) => ({ name, tone, href }));
    redraw(this.legend, entries, () =>
      entries.map(({ name, tone, href }) =>
        element("li", { class: `entry ${tone}` }, href ? element("a", { href }, name) : name),
      ),
    );
    if (empty) redraw(this.empty, sentence, () => [sentence]);
    else this.#render();
  }

  #resize() {
    const width = Math.floor(this.plot.clientWidth);
    if (width === this.#width || width === 0) return;
    this.#width = width;
    this.#render();
  }

  #render() {
    const model = this.#model;
    this.#width ||= Math.floor(this.plot.clientWidth);
    if (!model || this.#width === 0 || model.xs.length === 0) return;
    const [width, height] = [this.#width, this.height];
    const bottom = height - MARGIN.bottom;
    this.#ranges = { x: settle(this.#ranges?.x, model.x), y: settle(this.#ranges?.y, model.y) };
    const { x, y } = this.#ranges;
    this.toX = scale(x[0], x[1], MARGIN.left, width - MARGIN.right);
    this.toY = scale(y[0], y[1], bottom, MARGIN.top);
    const key = JSON.stringify([width, x, y, model.xName, model.summary, model.lines]);
    const fresh = key !== this.#axesKey;
    this.#shapes.begin(fresh);
    model.draw(this.#shapes, this.toX, this.toY);
    this.#shapes.end();
    if (!fresh) return;
    this.#axesKey = key;
    this.line = picture("line", { class: "cursor", y1: MARGIN.top, y2: bottom, visibility: "hidden" });
    this.dots = picture("g", {});
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("width", width);
    this.svg.setAttribute(
      "aria-label",
      `${this.title}. ${model.summary ?? ""} Arrow keys move the cursor, Enter opens the point.`,
    );
    replace(this.svg, this.#axes(width, bottom), this.#shapes.node, this.#lines(bottom), this.line, this.dots);
  }

  #axes(width, bottom) {
    const { x, y } = this.#ranges;
    const { xName = "step", format = label, xFormat = label } = this.#model;
    const group = picture("g", { class: "axes" });
    for (const value of marks(y[0], y[1], this.height < 120 ? 2 : 4)) {
      const at = this.toY(value);
      group.append(picture("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at }));
      group.append(picture("text", { x: MARGIN.left - 6, y: at + 4, "text-anchor": "end" }, format(value)));
    }
    for (const value of marks(x[0], x[1], Math.max(2, Math.floor(width / 90)))) {
      group.append(picture("text", { x: this.toX(value), y: bottom + 15, "text-anchor": "middle" }, xFormat(value)));
    }
    group.append(picture("line", { class: "base", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom }));
    const name = { class: "name", x: 2, y: bottom + 15 };
    group.append(picture("text", name, xName));
    return group;
  }

  #lines(bottom) {
    return (this.#model.lines ?? []).map(({ x, text, tone = "", href }, index) => {
      const at = this.toX(x);
      const flip = at > 0.75 * this.#width;
      const shape = picture("line", { x1: at, x2: at, y1: MARGIN.top, y2: bottom });
      const place = { x: at + (flip ? -5 : 5), y: MARGIN.top + 10 + 13 * index, "text-anchor": flip ? "end" : "start" };
      const content = [shape, picture("text", place, text)];
      return href
        ? picture("a", { href, class: `mark ${tone}` }, content)
        : picture("g", { class: `mark ${tone}` }, content);
    });
  }

  #point(event) {
    if (!this.#model || !this.toX) return;
    const box = this.svg.getBoundingClientRect();
    const [from, to] = this.#ranges.x;
    const [low, high] = [this.toX(from), this.toX(to)];
    const x = from + ((event.clientX - box.left - low) / (high - low || 1)) * (to - from);
    this.pointerY = event.clientY - box.top;
    this.cursor.set(x, this);
  }

  #move(x, source) {
    if (!this.#model || !this.line) return;
    const hidden = x === null || this.#model.xs.length === 0;
    this.line.setAttribute("visibility", hidden ? "hidden" : "visible");
    this.readout.hidden = hidden || source !== this;
    replace(this.dots);
    if (hidden) return;
    this.#index = nearest(this.#model.xs, x);
    const rows = this.#model.rows(this.#index);
    if (source === this && this.pointerY !== undefined) this.#chosen = this.#nearestRow(rows);
    const at = this.toX(this.#model.xs[this.#index].x);
    this.line.setAttribute("x1", at);
    this.line.setAttribute("x2", at);
    for (const { y, tone } of rows) {
      if (Number.isFinite(y))
        this.dots.append(picture("circle", { class: `dot ${tone}`, cx: at, cy: this.toY(y), r: 3.5 }));
    }
    if (source === this) this.#read(rows, at);
  }

  #nearestRow(rows) {
    const distances = rows.map(({ y }) => (Number.isFinite(y) ? Math.abs(this.toY(y) - this.pointerY) : Infinity));
    return Math.max(0, distances.indexOf(Math.min(...distances)));
  }

  #read(rows, at) {
    const { xs, xName = "step", heading, xFormat = label } = this.#model;
    const title = heading ? heading(xs[this.#index].x) : `${xName} ${xFormat(xs[this.#index].x)}`;
    const shown = rows.length > 12 ? rows.filter((_, index) => Math.abs(index - this.#chosen) < 6) : rows;
    const lines = shown.map((row) =>
      element(
        "div",
        { class: `row ${row.tone} ${row === rows[this.#chosen] ? "chosen" : ""}` },
        element("span", { class: "entry" }, row.name),
        element("span", { class: "value" }, row.text),
      ),
    );
    const hint = rows[this.#chosen]?.href
      ? element("div", { class: "hint" }, `click: ${rows[this.#chosen].hint ?? "open"}`)
      : null;
    replace(this.readout, element("strong", {}, title), lines, hint);
    const width = this.readout.offsetWidth;
    const left = at + 14 + width > this.#width ? at - 14 - width : at + 14;
    this.readout.style.transform = `translate(${Math.max(0, left)}px, 6px)`;
  }

  #click(event) {
    if (event.target.closest("a")) return;
    this.#open();
  }

  #open() {
    const href = this.#index >= 0 && this.#model?.rows(this.#index)[this.#chosen]?.href;
    if (href) location.hash = href;
  }

  #key(event) {
    drawNow(this.node);
    const { xs = [] } = this.#model ?? {};
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
    if (event.key === "Enter") this.#open();
    else if (event.key in steps) {
      const target = Math.min(xs.length - 1, Math.max(0, this.#index + steps[event.key]));
      this.pointerY = undefined;
      this.cursor.set(xs[target].x, this);
    } else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      const rows = this.#index < 0 ? [] : this.#model.rows(this.#index);
      if (rows.length === 0) return;
      this.#chosen = (this.#chosen + (event.key === "ArrowUp" ? rows.length - 1 : 1)) % rows.length;
      this.pointerY = undefined;
      this.cursor.set(xs[this.#index].x, this);
    } else return;
    event.preventDefault();
  }
}
