// Elements made by code. Text always becomes a text node, so nothing that a model wrote is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";
const INVISIBLE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** The text with control characters and invisible ones as symbols: ESC is ␛, a right-to-left override ‹U+202E›. */
export function visible(text) {
  return String(text).replace(INVISIBLE, (char) => {
    const code = char.codePointAt(0);
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    return code === 0x7f ? "␡" : `‹U+${code.toString(16).toUpperCase().padStart(4, "0")}›`;
  });
}

/** An element: `element("a", { href: "#/x", class: "link", onclick: f }, "text", child)`. */
export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for an element of a picture. */
export function picture(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Replace everything inside `node`. */
export function replace(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter(present).map(asNode));
  return node;
}

const keys = new WeakMap();

/** Replace everything inside `node` by `build()`, unless it was built from an equal `key` before. */
export function redraw(node, key, build, place = replace) {
  const text = JSON.stringify(key);
  if (keys.get(node) === text) return;
  keys.set(node, text);
  place(node, build());
}

/** The same as `replace`, except that what is equal stays, with its listeners: it is neither laid out nor painted again. */
export function patch(node, ...children) {
  const [before, after] = [[...node.childNodes], [...replace(node.cloneNode(false), children).childNodes]];
  after.forEach((child, index) => {
    const old = before[index];
    if (!old) node.append(child);
    else if (old.nodeType === Node.TEXT_NODE && child.nodeType === Node.TEXT_NODE) {
      if (old.data !== child.data) old.data = child.data;
    } else if (!old.isEqualNode(child)) {
      if (child.firstChild && old.cloneNode(false).isEqualNode(child.cloneNode(false)))
        patch(old, ...child.childNodes);
      else old.replaceWith(child);
    }
  });
  before.slice(after.length).forEach((child) => child.remove());
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter(present).map(asNode));
  return node;
}

function present(child) {
  return child !== null && child !== undefined && child !== false;
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(visible(child));
}
