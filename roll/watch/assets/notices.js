// Notices of a run: what was detected, when, and examples.

import { element } from "./dom.js";
import { clock } from "./format.js";
import { link } from "./widgets.js";

const KINDS = { error: "bad", warning: "warn", info: "info" };

/** The list; `address(page, rest, query)` makes links. */
export function noticeList(notices, address) {
  return element(
    "ul",
    { class: "notices" },
    notices.map((notice) => element("li", {}, oneNotice(notice, address))),
  );
}

function oneNotice({ time, step, kind, level, text, domain, attempts }, address) {
  const links = [];
  if (step)
    links.push(
      link(address("samples", [], { step, domain }), `samples of step ${step}${domain ? ` in ${domain}` : ""}`),
    );
  for (const name of (attempts ?? []).slice(0, 3)) {
    const [group] = name.split(".");
    links.push(link(address("samples", [], { group }), `example ${name}`));
  }
  const head = element("span", { class: "kind" }, kind.replace(/(?<=[a-z])(?=[A-Z])/g, " ").toLowerCase());
  const about = [step ? `step ${step}` : null, domain, clock(time)].filter((part) => part).join(", ");
  return element(
    "div",
    { class: `message ${KINDS[level] ?? "info"}` },
    head,
    " ",
    element("span", { class: "soft small" }, about),
    element("div", {}, text),
    links.length
      ? element(
          "div",
          { class: "small" },
          links.map((each, index) => [index ? " · " : "", each]),
        )
      : null,
  );
}
