// The shapes of a figure. Those whose numbers are the same as before stay, and are neither built nor painted again.

import { picture } from "./dom.js";

export class Shapes {
  #shown = [];
  #next = 0;
  #fresh = true;

  constructor() {
    this.node = picture("g", { class: "data" });
  }

  /** Draw from the first shape on; with `fresh`, none stays, since the scales are others. */
  begin(fresh) {
    [this.#next, this.#fresh] = [0, fresh];
  }

  /** The next shape, which its class and the numbers determine; `attributes()` is called if it is not shown yet. */
  add(tag, name, numbers, attributes) {
    const index = this.#next++;
    const shown = this.#shown[index];
    if (!this.#fresh && shown?.name === name && same(shown.numbers, numbers)) return;
    if (shown?.node.localName === tag) {
      if (shown.name !== name) shown.node.setAttribute("class", name);
      for (const [key, value] of Object.entries(attributes(numbers))) shown.node.setAttribute(key, value);
      Object.assign(shown, { name, numbers });
      return;
    }
    const node = picture(tag, { class: name, ...attributes(numbers) });
    if (shown) shown.node.replaceWith(node);
    else this.node.append(node);
    this.#shown[index] = { node, name, numbers };
  }

  /** Remove what is left of an earlier drawing. */
  end() {
    for (const { node } of this.#shown.splice(this.#next)) node.remove();
  }
}

function same(before, after) {
  return before.length === after.length && before.every((value, index) => value === after[index]);
}
