// Config: the resolved configuration of the run, and what it means.

import { element, replace } from "./dom.js";
import { plural } from "./format.js";
import { choices, field, message, panel } from "./widgets.js";

const AGAIN_MS = 1000;
const VIEWS = [
  ["explained", "What it means"],
  ["file", "The file"],
];

export async function show(root, page) {
  const view = page.query.view ?? "explained";
  let text = page.query.text ?? "";
  let answer = await page.api("config");
  const body = element("div");
  const about = element("span", { class: "about", role: "status" });
  const draw = () => {
    if (!page.current()) return;
    replace(body, view === "file" ? lines(answer.text, text, about) : explanation(answer.explain, text, about));
  };
  const filter = (value) => {
    text = value;
    page.keep({ text });
    draw();
  };
  const wait = async () => {
    while (page.current() && answer.explain.state === "computing") {
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
      if (!page.current()) return;
      answer = await page
        .api("config")
        .catch((error) => ({ ...answer, explain: { state: "done", text: null, error: error.message } }));
      draw();
    }
  };
  root.append(
    element(
      "div",
      { class: "top" },
      element("h1", {}, "Config"),
      about,
      element(
        "div",
        { class: "tools" },
        field("Find (key /)", text, filter, { size: 22, hint: "lines with this text", search: true }),
        choices("View", VIEWS, view, (value) => page.change({ view: value === "explained" ? "" : value })),
      ),
    ),
    body,
  );
  draw();
  wait();
  return {};
}

function explanation({ state, text, error }, part, about) {
  if (error) return message("bad", error);
  if (state === "computing") return message("info", "The explanation is being computed; it takes some seconds.");
  return lines(text ?? "", part, about);
}

/** The text with the lines that contain `part` marked. */
function lines(text, part, about) {
  const wanted = part.toLowerCase();
  let hits = 0;
  const rows = text.split("\n").map((line) => {
    const hit = wanted !== "" && line.toLowerCase().includes(wanted);
    hits += hit ? 1 : 0;
    return element("div", { class: hit ? "hit" : wanted ? "miss" : "" }, line || " ");
  });
  replace(about, wanted ? plural(hits, "line") : "");
  return panel(null, element("pre", { class: "config" }, rows));
}
