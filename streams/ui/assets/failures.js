// Shows every failed request on the page: those of htmx here, those of a chart in its place.

export const SILENT = { what: "weft ui does not answer", hint: "Is it still running? Then try again." };

export function showFailures() {
  const box = document.getElementById("failed");
  let failedBy = null;
  let leaving = false;

  function say(event, { what, hint }) {
    if (leaving) return; // the browser ends requests of a page that is left
    failedBy = event.detail.elt;
    weftPage.fail(what, hint);
  }
  function close() {
    failedBy = null;
    box.hidden = true;
  }
  const { body } = document;
  body.addEventListener("htmx:responseError", (event) => {
    const { xhr } = event.detail;
    say(event, wordsOf(xhr.status, xhr.getResponseHeader("Content-Type"), xhr.responseText));
  });
  body.addEventListener("htmx:sendError", (event) => say(event, SILENT));
  body.addEventListener("htmx:timeout", (event) => say(event, SILENT));
  for (const name of ["htmx:swapError", "htmx:targetError", "htmx:onLoadError"]) {
    body.addEventListener(name, (event) => say(event, { what: "The answer could not be shown", hint: "Reload the page." }));
  }
  body.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.successful && event.detail.elt === failedBy) close();
  });
  document.getElementById("failed-close").addEventListener("click", close);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || box.hidden) return;
    event.preventDefault(); // one thing at a time
    close();
  });
  addEventListener("pagehide", () => (leaving = true));
  addEventListener("pageshow", () => (leaving = false));
}

// Reads the message of an error response. weft ui sends an alert or a line of text, a proxy may send anything.
export function wordsOf(status, type, text) {
  if (type?.startsWith("text/plain") && text.trim()) return { what: text.trim(), hint: "" };
  if (type?.startsWith("text/html")) {
    const lines = new DOMParser().parseFromString(text, "text/html").querySelectorAll("main [role=alert]:not([hidden]) p");
    const [what, ...rest] = Array.from(lines, (line) => line.textContent);
    if (what) return { what, hint: rest.join(" ") };
  }
  if (type?.startsWith("application/json")) {
    try {
      const { error, hint, guide } = JSON.parse(text);
      if (error) return { what: error, hint: [hint, guide && `guide: ${guide}`].filter(Boolean).join(" ") };
    } catch {
      // the answer is not from weft ui
    }
  }
  return { what: `The server answered ${status} instead of the page`, hint: "Try again, and see the output of weft ui." };
}
