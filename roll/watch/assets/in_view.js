// Drawing only what the reader can see: anything else waits until it is scrolled into view.

const pending = new Map();
const known = new WeakSet();
const visible = new WeakSet();

const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) {
      visible.add(target);
      drawNow(target);
    } else visible.delete(target);
  }
});

/** Call `draw` now if the node is in view, or else once it is; only the newest call for a node counts. */
export function drawInView(node, draw) {
  pending.set(node, draw);
  if (!known.has(node)) {
    known.add(node);
    observer.observe(node);
  }
  if (visible.has(node)) drawNow(node);
}

/** Make the drawing that a node waits for, wherever it is. */
export function drawNow(node) {
  const draw = pending.get(node);
  pending.delete(node);
  draw?.();
}

/** Forget all nodes: the page that they belong to is gone. */
export function forgetNodes() {
  pending.clear();
  observer.disconnect();
}
