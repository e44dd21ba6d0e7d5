// Runs before the page is parsed; the other scripts come later. Clicks, submits and keys from before the other scripts
// listen are kept, and repeated once when they do. Otherwise a form would be sent without its confirmation, and a
// shortcut would be lost.
(() => {
  const kept = new Map();
  const keeps = { click: keepClick, submit: keepSubmit, keydown: keepShortcut };

  function keepClick(event) {
    const control = event.target.closest("button[type=button], a[hx-get]");
    if (!control || event.ctrlKey || event.metaKey || event.shiftKey) return;
    keep(event, control, () => control.click());
  }

  function keepSubmit(event) {
    keep(event, event.target, () => event.target.requestSubmit(event.submitter));
  }

  function keepShortcut(event) {
    const box = event.target;
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || !box.form) return;
    keep(event, box.form, () => box.dispatchEvent(new KeyboardEvent("keydown", event)));
  }

  function keep(event, control, act) {
    event.preventDefault();
    event.stopImmediatePropagation();
    kept.set(control, act); // who presses twice while nothing happens wants it once
  }

  function ready() {
    for (const [name, listener] of Object.entries(keeps)) document.removeEventListener(name, listener, true);
    removeEventListener("error", notLoaded, true);
    document.documentElement.dataset.ready = "";
    for (const [control, act] of kept) if (control.isConnected) act();
    kept.clear();
  }

  function notLoaded(event) {
    const script = event.target instanceof HTMLScriptElement ? event.target.src.replace(/.*\//, "") : event.message;
    const tell = () => fail("A part of this page did not load, so its controls do nothing", `Reload the page (${script}).`);
    if (document.getElementById("failed")) tell();
    else addEventListener("DOMContentLoaded", tell);
  }

  // Shows what failed and what to do, in a box that stays until it is closed or the same request succeeds.
  function fail(what, hint) {
    document.getElementById("failed-what").textContent = what;
    document.getElementById("failed-hint").textContent = hint;
    document.getElementById("failed").hidden = false;
  }

  for (const [name, listener] of Object.entries(keeps)) document.addEventListener(name, listener, true);
  addEventListener("error", notLoaded, true);
  window.weftPage = { ready, fail };
})();
