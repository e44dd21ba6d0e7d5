// Details open in a card: the keyboard follows into it, and comes back when it is closed.

export function followCards() {
  const openers = new Map();

  document.body.addEventListener("htmx:beforeRequest", (event) => {
    const { target } = event.detail;
    if (target?.matches("[data-card]") && !target.contains(document.activeElement)) openers.set(target, document.activeElement);
  });
  document.body.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.matches("[data-card]")) event.detail.target.querySelector("h2")?.focus({ preventScroll: true });
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-close]");
    if (button) close(button.closest("[data-card]"));
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.defaultPrevented) return;
    const inside = document.activeElement.closest?.("[data-card]");
    const card = inside ?? [...document.querySelectorAll("[data-card]")].find((card) => card.firstElementChild);
    if (card?.firstElementChild) close(card);
  });

  function close(card) {
    const had = card.contains(document.activeElement);
    const opener = openers.get(card);
    card.replaceChildren();
    if (had) (opener?.isConnected ? opener : document.getElementById("main")).focus();
  }
}
