// A table of any number of rows: only those in view are in the page, and more are fetched at its end.

import { element, replace } from "./dom.js";

const ROW = 30;
const AHEAD = 40;
const MOST = 250_000;

/** `columns`: { title, cell(row), align, width, grow, sort }; `fetch(cursor)` gives { rows, next };
 * `href(row)`: address of a row; `sorted`: name of the present order; `onSort(name)`; `onLoad(answer)`: after the first block. */
export class Table {
  #rows = [];
  #next = null;
  #busy = false;
  #selected = -1;
  #generation = 0;

  constructor({
    columns,
    fetch,
    href,
    label,
    sorted = "",
    onSort = null,
    sentence = () => "No rows.",
    onLoad = () => {},
    onError = () => {},
  }) {
    Object.assign(this, { columns, fetch, href, sorted, onSort, onLoad, onError, sentence });
    this.head = element(
      "div",
      { class: "thead", role: "row" },
      columns.map((column) => this.#header(column)),
    );
    this.space = element("div", { class: "tspace", role: "rowgroup" });
    this.empty = element("p", { class: "empty", hidden: true });
    this.node = element(
      "div",
      { class: "table", role: "table", "aria-label": label, tabindex: "0" },
      this.head,
      this.space,
      this.empty,
    );
    this.head.style.gridTemplateColumns = this.#template();
    const least = this.columns.reduce((sum, { width = 80 }) => sum + width, 0);
    this.node.style.setProperty("--least", `${least}px`);
    this.node.addEventListener("scroll", () => this.#draw(), { passive: true });
    new ResizeObserver(() => this.#draw()).observe(this.node);
  }

  /** Whether the first row is in view and none is selected, so that new rows disturb nobody. */
  get atStart() {
    return this.node.scrollTop < ROW && this.#selected < 0;
  }

  /** Read the rows from the first one on; the old ones stay until the new ones are there. */
  async load() {
    const generation = ++this.#generation;
    this.#busy = true;
    const answer = await this.fetch(null).catch((error) => this.onError(error));
    if (generation !== this.#generation) return;
    this.#busy = false;
    if (!answer) return;
    [this.#rows, this.#next] = [answer.rows, answer.next];
    this.onLoad(answer);
    this.#draw();
  }

  /** The same for other rows: from the first one, with none selected. */
  restart() {
    this.#selected = -1;
    this.node.scrollTop = 0;
    return this.load();
  }

  /** Select the next row, or another one at this distance. */
  move(distance) {
    if (this.#rows.length === 0) return;
    this.#selected = Math.min(this.#rows.length - 1, Math.max(0, this.#selected + distance));
    const top = this.#selected * ROW;
    const view = this.node.clientHeight - this.head.offsetHeight;
    if (top < this.node.scrollTop) this.node.scrollTop = top;
    if (top + ROW > this.node.scrollTop + view) this.node.scrollTop = top + ROW - view;
    this.#draw();
  }

  /** Open the selected row. */
  open() {
    const row = this.#rows[this.#selected];
    if (row) location.hash = this.href(row);
  }

  #header({ title, align = "", sort, help }) {
    const active = sort && this.sorted.replace(/^-/, "") === sort;
    const down = this.sorted.startsWith("-");
    const press = () => this.onSort(active && down ? sort : `-${sort}`);
    const arrow = active ? (down ? " ▼" : " ▲") : "";
    const content = sort && this.onSort ? element("button", { type: "button", onclick: press }, title, arrow) : title;
    const order = active ? (down ? "descending" : "ascending") : null;
    return element("div", { class: `cell ${align}`, role: "columnheader", title: help, "aria-sort": order }, content);
  }

  #template() {
    return this.columns
      .map(({ width = 80, grow }) => (grow ? `minmax(${width}px, ${grow}fr)` : `${width}px`))
      .join(" ");
  }

  #draw() {
    const view = Math.ceil(this.node.clientHeight / ROW) + 1;
    const first = Math.max(0, Math.floor(this.node.scrollTop / ROW) - 4);
    const last = Math.min(this.#rows.length, first + view + 8);
    const focused = this.space.contains(document.activeElement);
    replace(
      this.space,
      this.#rows.slice(first, last).map((row, index) => this.#line(row, first + index)),
    );
    this.space.style.height = `${this.#rows.length * ROW}px`;
    this.empty.hidden = this.#rows.length > 0 || this.#busy;
    if (!this.empty.hidden) replace(this.empty, this.sentence());
    this.node.setAttribute("aria-rowcount", this.#next === null ? this.#rows.length : -1);
    if (focused) this.space.querySelector(".selected")?.focus({ preventScroll: true });
    if (last + AHEAD > this.#rows.length) this.#more();
  }

  #line(row, index) {
    const cells = this.columns.map(({ align = "", cell }) =>
      element("div", { class: `cell ${align}`, role: "cell" }, cell(row)),
    );
    const selected = index === this.#selected;
    const attributes = { class: `trow ${selected ? "selected" : ""}`, role: "row", href: this.href(row) };
    const line = element(
      "a",
      { ...attributes, "aria-rowindex": index + 1, tabindex: selected || index === 0 ? "0" : "-1" },
      cells,
    );
    line.style.gridTemplateColumns = this.#template();
    line.style.transform = `translateY(${index * ROW}px)`;
    return line;
  }

  async #more() {
    if (this.#busy || this.#next === null || this.#rows.length >= MOST) return;
    this.#busy = true;
    const generation = this.#generation;
    const answer = await this.fetch(this.#next).catch((error) => this.onError(error));
    if (generation !== this.#generation) return;
    this.#busy = false;
    if (!answer) return;
    this.#rows = this.#rows.concat(answer.rows);
    this.#next = answer.next;
    this.#draw();
  }
}

/** A short table with all of its rows in the page; `columns`: { title, cell(row), align }. */
export function plainTable(columns, rows, { label, sentence = "No rows." } = {}) {
  if (rows.length === 0) return element("p", { class: "empty" }, sentence);
  const head = element(
    "tr",
    {},
    columns.map(({ title, align = "", help }) => element("th", { scope: "col", class: align, title: help }, title)),
  );
  const body = rows.map((row) =>
    element(
      "tr",
      {},
      columns.map(({ cell, align = "" }) => element("td", { class: align }, cell(row))),
    ),
  );
  const table = element(
    "table",
    { class: "plain", "aria-label": label },
    element("thead", {}, head),
    element("tbody", {}, body),
  );
  return element("div", { class: "scroll" }, table);
}
