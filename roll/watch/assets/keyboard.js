// Keys: `g` and a letter for a page, j and k for rows, / for the search field, ? for this list, Esc to leave.

import { element } from "./dom.js";

const ROWS = [
  ["j, k", "next, previous row or sample"],
  ["Enter", "open the selected row, or the point under the cursor of a chart"],
  ["/", "search field"],
  ["t", "theme: system, dark or light"],
  ["Esc", "leave a field, close this list, or go up"],
  ["?", "this list"],
  ["← → ↑ ↓", "cursor of a chart with the focus"],
];

/** Handles keys; `pages` are { key, name, go() }, and `view()` gives the page in view with its `keys`. */
export class Keyboard {
  #prefix = false;

  constructor({ pages, view, up, theme }) {
    Object.assign(this, { pages, view, up, theme });
    this.dialog = this.#list();
    document.body.append(this.dialog);
    document.addEventListener("keydown", (event) => this.#press(event));
  }

  showList() {
    this.dialog.showModal();
  }

  #list() {
    const pages = this.pages.map(({ key, name }) => [`g ${key}`, name]);
    const rows = [...pages, ...ROWS].map(([keys, effect]) =>
      element("tr", {}, element("td", {}, element("kbd", {}, keys)), element("td", {}, effect)),
    );
    const close = element("button", { type: "button", onclick: () => this.dialog.close() }, "Close");
    return element(
      "dialog",
      { class: "keys", "aria-label": "Keys" },
      element("h2", {}, "Keys"),
      element("table", {}, element("tbody", {}, rows)),
      close,
    );
  }

  #press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.dialog.open) return;
    const field = event.target.closest("input, select, textarea");
    if (event.key === "Escape") {
      if (field) field.blur();
      else this.up();
    } else if (!field && !(event.key === "Enter" && event.target.closest("a, button, summary, svg"))) {
      this.#act(event);
    }
  }

  #act(event) {
    const prefix = this.#prefix;
    this.#prefix = false;
    const action = prefix ? this.pages.find(({ key }) => key === event.key)?.go : this.#action(event.key);
    if (!action) return;
    event.preventDefault();
    action();
  }

  #action(key) {
    const keys = this.view()?.keys ?? {};
    if (Object.hasOwn(keys, key)) return keys[key];
    const actions = {
      g: () => {
        this.#prefix = true;
      },
      "/": () => document.querySelector("[data-search]")?.focus(),
      "?": () => this.showList(),
      t: this.theme,
    };
    return Object.hasOwn(actions, key) ? actions[key] : null;
  }
}
