// Small parts that several pages show.

import { element } from "./dom.js";

/** A message with a sentence that says what to do. */
export function message(kind, ...content) {
  return element("div", { class: `message ${kind}`, role: kind === "bad" ? "alert" : null }, content);
}

/** Names with values, for the numbers at the top of a page; an entry is [name, value, unit, help]. */
export function figures(entries) {
  const shown = entries.filter((entry) => entry);
  return element(
    "dl",
    { class: "figures" },
    shown.map(([name, value, unit, help]) =>
      element(
        "div",
        { title: help },
        element("dt", {}, name),
        element("dd", {}, value, unit ? element("span", { class: "unit" }, ` ${unit}`) : null),
      ),
    ),
  );
}

const values = new WeakMap();

/** The same inside `node`; only values that have changed are written. */
export function showFigures(node, entries) {
  const key = entries.map(([name, , unit]) => `${name} ${unit ?? ""}`).join("\n");
  const shown = values.get(node);
  if (shown?.key !== key) {
    node.replaceChildren(figures(entries));
    values.set(node, { key, texts: [...node.querySelectorAll("dd")].map((each) => each.firstChild) });
    return;
  }
  shown.texts.forEach((text, index) => {
    const value = String(entries[index][1]);
    if (text.data !== value) text.data = value;
  });
}

/** Buttons of which one is pressed; `options` are [value, name] pairs; without `shown` only screen readers get the label. */
export function choices(label, options, chosen, onChoose, { shown = true } = {}) {
  const buttons = options.map(([value, name]) =>
    element(
      "button",
      { type: "button", "aria-pressed": String(value === chosen), onclick: () => onChoose(value) },
      name,
    ),
  );
  return element(
    "div",
    { class: "field" },
    shown ? label : null,
    element("div", { class: "choices", role: "group", "aria-label": label }, buttons),
  );
}

/** A list to choose from; `options` are [value, name] pairs. */
export function selection(label, options, chosen, onChoose) {
  const entries = options.map(([value, name]) => element("option", { value, selected: value === chosen }, name));
  const select = element("select", { onchange: (event) => onChoose(event.target.value) }, entries);
  return element("label", { class: "field" }, label, select);
}

/** A field whose text is used once the reader stops to type, or presses Enter. */
export function field(label, value, onInput, { size = 10, hint = "", search = false } = {}) {
  let timer = 0;
  const use = (event) => {
    clearTimeout(timer);
    timer = setTimeout(() => onInput(event.target.value.trim()), event.type === "change" ? 0 : 200);
  };
  const input = element("input", {
    type: search ? "search" : "text",
    size,
    placeholder: hint,
    "data-search": search,
    autocomplete: "off",
    spellcheck: "false",
    oninput: use,
    onchange: use,
  });
  input.value = value ?? "";
  return element("label", { class: "field" }, label, input);
}

/** A link. */
export function link(href, ...content) {
  return element("a", { href }, content);
}

/** A word in a frame. */
export function tag(text, kind = "") {
  return element("span", { class: `tag ${kind}` }, text);
}

const STATUS_KIND = {
  finished: "",
  trained: "good",
  truncated: "warn",
  stale: "warn",
  filtered: "warn",
  waiting: "",
  rolled_back: "warn",
};

/** The status or the outcome of an attempt; those that are failures stand out. */
export function outcomeTag(name) {
  return tag(name.replaceAll("_", " "), STATUS_KIND[name] ?? "bad");
}

/** A heading with content below, in a frame. */
export function panel(title, ...content) {
  return element("section", { class: "panel" }, title ? element("h2", {}, title) : null, content);
}
