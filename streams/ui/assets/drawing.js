// Used by all charts: colours of the theme, loading of data with its errors, and formatting of numbers.
import { SILENT, wordsOf } from "./failures.js";

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export async function load(address, box) {
  let answer;
  let text;
  try {
    answer = await fetch(address, { headers: { Accept: "application/json" } });
    text = await answer.text();
  } catch {
    return problem(box, SILENT);
  }
  const type = answer.headers.get("Content-Type");
  if (answer.ok && type === "application/json") return JSON.parse(text);
  return problem(box, wordsOf(answer.status, type, text));
}

// Shows a line of text instead of the chart.
export function sayText(box, text) {
  let line = box.querySelector(".empty");
  if (!line) {
    line = document.createElement("p");
    line.className = "empty";
    box.prepend(line);
  }
  line.removeAttribute("role");
  line.textContent = text;
  return line;
}

function problem(box, { what, hint }) {
  sayText(box, hint ? `${what}. ${hint}` : what).setAttribute("role", "alert");
  return null;
}

export function clearText(box) {
  box.querySelector(".empty")?.remove();
}

export function tip(box) {
  const element = document.createElement("div");
  element.className = "tip";
  element.hidden = true;
  box.append(element);
  return {
    show(text, x, y) {
      element.textContent = text;
      element.hidden = false;
      const left = Math.max(4, Math.min(x + 14, box.clientWidth - element.offsetWidth - 8));
      element.style.left = `${left}px`;
      element.style.top = `${Math.max(4, y - element.offsetHeight - 12)}px`;
    },
    hide() {
      element.hidden = true;
    },
  };
}

export function bytes(value) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (value < 1000) return unit === "B" ? `${Math.round(value)} B` : `${value.toFixed(1)} ${unit}`;
    value /= 1000;
  }
  return `${value.toFixed(1)} TB`;
}

export function duration(seconds) {
  for (const [length, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= length) return `${(seconds / length).toFixed(1)} ${unit}`;
  }
  return `${Math.round(seconds)} s`;
}

// Times are in UTC, as everywhere in weft.
export const utc = (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC");
const DAY = "\n{YYYY}-{MM}-{DD}";
export const times = [
  [31536000, "{YYYY}", null, null, null, null, null, null, 1],
  [2419200, "{MM}", "\n{YYYY}", null, null, null, null, null, 1],
  [86400, "{MM}-{DD}", "\n{YYYY}", null, null, null, null, null, 1],
  [3600, "{HH}:{mm}", DAY, null, DAY, null, null, null, 1],
  [60, "{HH}:{mm}", DAY, null, DAY, null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", DAY, null, DAY, null, null, null, 1],
  [0.001, "{ss}.{fff}", "\n{HH}:{mm}", null, DAY, null, "\n{HH}:{mm}", null, 1],
];

export const axes = () => ({
  stroke: colour("quiet"),
  grid: { stroke: colour("line"), width: 1 },
  ticks: { stroke: colour("line"), width: 1 },
  font: "12px system-ui, sans-serif",
});
