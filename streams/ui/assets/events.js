// The picture of a row: shows the details of the event that the mouse or the keyboard points at.
import { tip } from "./drawing.js";

const STEPS = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };

export function followEvents(picture) {
  const events = [...picture.querySelectorAll(".event")];
  const card = picture.closest(".card");
  const label = tip(card);
  card.lastElementChild.classList.add("words");

  function show(event) {
    const box = card.getBoundingClientRect();
    const mark = event.querySelector(".mark").getBoundingClientRect();
    label.show(event.getAttribute("aria-label"), mark.right - box.left, mark.top - box.top);
  }
  function choose(event) {
    for (const other of events) other.setAttribute("tabindex", other === event ? "0" : "-1");
    event.focus();
  }
  events.forEach((event, number) => {
    event.addEventListener("pointerenter", () => show(event));
    event.addEventListener("pointerleave", label.hide);
    event.addEventListener("focus", () => show(event));
    event.addEventListener("blur", label.hide);
    event.addEventListener("click", () => choose(event));
    event.addEventListener("keydown", (pressed) => {
      if (pressed.key === "Escape") label.hide();
      if (!(pressed.key in STEPS)) return;
      pressed.preventDefault();
      choose(events[Math.max(0, Math.min(events.length - 1, number + STEPS[pressed.key]))]);
    });
  });
  picture.parentElement.scrollLeft = picture.parentElement.scrollWidth; // the newest events
}
