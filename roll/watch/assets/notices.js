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

function oneNotice({ time, step, title, level, text, domain, attempts, ended }, address) {
  const links = [];
  if (step)
    links.push(
      link(address("samples", [], { step, domain }), `samples of step ${step}${domain ? ` in ${domain}` : ""}`),
    );
  for (const name of (attempts ?? []).slice(0, 3)) {
    const [group] = name.split(".");
    links.push(link(address("samples", [], { group }), `example ${name}`));
  }
  const head = element("span", { class: "kind" }, title);
  const steps = ended ? `steps ${step} to ${ended.step}` : `step ${step}`;
  const about = [step ? steps : null, domain, clock(time)].filter((part) => part).join(", ");
  return element(
    "div",
    { class: `message ${KINDS[level] ?? "info"}` },
    head,
    " ",
    element("span", { class: "soft small" }, about),
    element("div", {}, text),
    ended ? element("div", { class: "soft" }, `Ended: ${ended.text}`) : null,
    links.length
      ? element(
          "div",
          { class: "small" },
          links.map((each, index) => [index ? " · " : "", each]),
        )
      : null,
  );
}
