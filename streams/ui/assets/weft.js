// What every page does: follow the table, change the theme, draw charts, fill in times.
import { drawRates } from "./rates.js";
import { drawTimeline } from "./timeline.js";
import { drawHeat } from "./heat.js";
import { followEvents } from "./events.js";
import { showFailures, wordsOf } from "./failures.js";
import { followCards } from "./cards.js";

const charts = { rates: drawRates, timeline: drawTimeline, heat: drawHeat };
const drawn = [];
const RETRY_MS = 3000;

function start() {
  for (const box of document.querySelectorAll("[data-chart]")) {
    drawn.push(charts[box.dataset.chart](box));
  }
  document.getElementById("theme-button").addEventListener("click", changeTheme);
  document.body.addEventListener("weft-news", () => drawn.forEach((chart) => chart.renew()));
  document.addEventListener("click", fillPoint);
  document.addEventListener("click", pickQuery);
  document.addEventListener("submit", beforeSubmit);
  document.addEventListener("click", abort);
  readySql();
  document.querySelectorAll("svg.events").forEach(followEvents);
  document.querySelector(".menu [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  addEventListener("resize", later(() => drawn.forEach((chart) => chart.resize()), 150));
  showFailures();
  followCards();
  follow();
  document.addEventListener("DOMContentLoaded", () => window.htmx && weftPage.ready()); // htmx begins then, too, and before
}

function changeTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("weft-theme", theme);
  drawn.forEach((chart) => chart.recolour());
}

// Server-sent events say that the table has changed; htmx then renews the living part of the page.
function follow() {
  const button = document.getElementById("live-button");
  const text = document.getElementById("live-text");
  const trouble = document.getElementById("trouble");
  let source = null;
  let again = 0;
  let first = true;

  function open() {
    const address = `${document.body.dataset.root}/events`;
    source = new EventSource(address);
    source.addEventListener("table", (event) => {
      trouble.hidden = true;
      button.classList.remove("trouble");
      text.textContent = "live";
      if (document.querySelector("[data-waits]")) location.reload();
      // What the page shows may be older than the first event.
      const isCurrent = first && JSON.parse(event.data) === document.body.dataset.cut;
      first = false;
      if (isCurrent) return;
      document.body.dispatchEvent(new CustomEvent("weft-news"));
    });
    source.addEventListener("trouble", (event) => say(`${JSON.parse(event.data)}. What this page shows is old.`));
    source.onerror = async () => {
      // After an answer that is an error, such as one for an old token, a browser does not try again by itself.
      const closed = source.readyState === EventSource.CLOSED;
      const why = closed && (await refusal(address));
      if (button.getAttribute("aria-pressed") === "false") return; // it was paused meanwhile
      say(`${why || "The page does not reach weft ui any more"}: what it shows is old. It tries again.`);
      if (closed) again = setTimeout(open, RETRY_MS);
    };
  }
  function say(message) {
    button.classList.add("trouble");
    text.textContent = "no answer";
    trouble.textContent = message;
    trouble.hidden = false;
    first = false;
  }
  button.addEventListener("click", () => {
    const paused = button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", String(!paused));
    text.textContent = paused ? "paused" : "live";
    clearTimeout(again);
    if (paused) {
      source.close();
    } else {
      first = false;
      open();
    }
  });
  addEventListener("pagehide", () => source.close());
  open();
}

// Returns why a request of an address fails; null if it succeeds, or if there is no response.
async function refusal(address) {
  const control = new AbortController();
  try {
    const answer = await fetch(address, { signal: control.signal });
    if (!answer.ok) return wordsOf(answer.status, answer.headers.get("Content-Type"), await answer.text()).what;
  } catch {
    // no response
  } finally {
    control.abort();
  }
  return null;
}

function fillPoint(event) {
  const button = event.target.closest("[data-point]");
  if (!button) return;
  const input = button.closest("form").elements[button.dataset.point];
  const ago = Number(button.dataset.ago);
  input.value = ago ? new Date(Date.now() - ago * 1000).toISOString().replace(/\.\d+Z$/, "Z") : "";
  input.focus();
}

function beforeSubmit(event) {
  const form = event.target;
  if (form.dataset.confirm && !confirm(form.dataset.confirm)) {
    event.preventDefault();
    return;
  }
  for (const input of form.querySelectorAll("[data-key]")) {
    input.nextElementSibling.value = `${input.dataset.key}=${input.value}`;
  }
}

// Cancels a running search: the server notices that the browser has disconnected.
function abort(event) {
  const button = event.target.closest("[data-abort]");
  if (button) htmx.trigger(document.getElementById(button.dataset.abort), "htmx:abort");
}

function pickQuery(event) {
  const button = event.target.closest("[data-sql]");
  const form = document.getElementById("sql-form");
  if (!button || !form) return;
  form.elements.sql.value = button.dataset.sql;
  form.elements.as_of.value = button.dataset.asOf;
  form.elements.sql.focus();
}

// Ctrl+Enter in the box runs the query; each query that was begun is added to the history.
function readySql() {
  const form = document.getElementById("sql-form");
  if (!form) return;
  const list = document.getElementById("sql-history");
  form.elements.sql.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  document.getElementById("answer").addEventListener("htmx:afterSwap", () => markError(form.elements.sql));
  form.addEventListener("htmx:afterRequest", (event) => {
    const begun = event.detail.successful && event.detail.xhr.responseText.includes('id="answer-');
    if (event.target !== form || !begun) return;
    const sql = form.elements.sql.value.trim();
    list.querySelector(".empty")?.remove();
    const button = document.createElement("button");
    button.type = "button";
    button.className = "pick";
    button.dataset.sql = sql;
    button.dataset.asOf = form.elements.as_of.value;
    button.textContent = sql;
    const item = document.createElement("li");
    item.append(button);
    list.prepend(item);
  });
}

// Selects the place that a message of Spark names, so that going back to the box shows it.
function markError(box) {
  const place = document.querySelector("[data-sql-error]")?.textContent.match(/\(?line (\d+), pos(?:ition)? (\d+)\)?/);
  if (!place) return;
  const lines = box.value.split("\n");
  const start = lines.slice(0, Number(place[1]) - 1).reduce((sum, line) => sum + line.length + 1, 0) + Number(place[2]);
  box.setSelectionRange(start, Math.max(start + 1, start + (box.value.slice(start).match(/^\w+/)?.[0].length ?? 1)));
}

export function later(action, milliseconds) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, milliseconds);
  };
}

start();
