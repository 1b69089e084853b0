// Dark or light: the system's choice until the reader makes one.

const KEY = "roll-watch-theme";
const NEXT = { "": "dark", dark: "light", light: "" };
const NAMES = { "": "theme: system", dark: "theme: dark", light: "theme: light" };

/** Apply the stored choice. */
export function restoreTheme() {
  apply(localStorage.getItem(KEY) ?? "");
}

/** Change to the next choice; returns its name. */
export function switchTheme() {
  const next = NEXT[document.documentElement.dataset.theme ?? ""];
  localStorage.setItem(KEY, next);
  apply(next);
  return themeName();
}

export function themeName() {
  return NAMES[document.documentElement.dataset.theme ?? ""];
}

function apply(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}
