// A square for each file group, coloured by a number of it.
import { bytes, clearText, colour, duration, load, sayText, tip } from "./drawing.js";

const METRICS = {
  ratio: { value: (d, i) => d.log[i] / Math.max(1, d.base[i]), text: (v) => (v > 100 ? "no base" : `${(v * 100).toFixed(v < 0.1 ? 1 : 0)} %`), most: 1 },
  log: { value: (d, i) => d.log[i], text: bytes },
  bytes: { value: (d, i) => d.base[i] + d.log[i], text: bytes },
  rows: { value: (d, i) => d.rows[i], text: (v) => v.toLocaleString("en") },
  commits: { value: (d, i) => d.commits[i], text: (v) => v.toLocaleString("en") },
  age: { value: (d, i) => d.age[i] ?? 0, text: duration },
};
const STEPS = 32;

export function drawHeat(box) {
  const metric = document.getElementById("heat-metric");
  const said = document.getElementById("heat-said");
  const scale = document.querySelector(".ramp");
  const label = tip(box);
  const canvas = document.createElement("canvas");
  canvas.className = "heatmap";
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", "Heat map of file groups. Arrow keys move, Enter shows the files. The list below has the same.");
  let data = null;
  let side = 10;
  let columns = 1;
  let chosen = 0;
  let focused = false;

  function ramp() {
    const stops = [0, 1, 2, 3, 4].map((number) => colour(`heat-${number}`).match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16)));
    return Array.from({ length: STEPS }, (_, step) => {
      const at = (step / (STEPS - 1)) * 4;
      const low = Math.min(3, Math.floor(at));
      const rest = at - low;
      return `rgb(${stops[low].map((part, i) => Math.round(part + (stops[low + 1][i] - part) * rest)).join(" ")})`;
    });
  }

  function paint() {
    if (!data) return;
    const count = data.names.length;
    const wide = box.clientWidth - 24;
    side = Math.max(5, Math.min(34, Math.floor(Math.sqrt((wide * 360) / Math.max(1, count)))));
    columns = Math.max(1, Math.floor(wide / side));
    const lines = Math.ceil(count / columns);
    const ratio = devicePixelRatio;
    canvas.width = wide * ratio;
    canvas.height = lines * side * ratio;
    canvas.style.height = `${lines * side}px`;
    const ctx = canvas.getContext("2d");
    ctx.scale(ratio, ratio);
    const { value, text, most } = METRICS[metric.value];
    let highest = 0;
    for (let i = 0; i < count; i++) highest = Math.max(highest, value(data, i));
    if (most) highest = most; // a ratio means the same in every table
    const colours = ramp();
    const gap = side > 8 ? 2 : 1;
    for (let i = 0; i < count; i++) {
      const share = highest ? Math.min(1, value(data, i) / highest) : 0;
      ctx.fillStyle = colours[Math.round(Math.sqrt(share) * (STEPS - 1))];
      ctx.fillRect((i % columns) * side, Math.floor(i / columns) * side, side - gap, side - gap);
    }
    if (focused) {
      ctx.strokeStyle = colour("ink");
      ctx.lineWidth = 2;
      ctx.strokeRect((chosen % columns) * side - 0.5, Math.floor(chosen / columns) * side - 0.5, side - gap + 1, side - gap + 1);
    }
    document.getElementById("heat-low").textContent = text(0);
    document.getElementById("heat-high").textContent = most ? `≥ ${text(most)}` : text(highest);
  }

  const describe = (i) =>
    `${data.names[i]}: ${data.rows[i].toLocaleString("en")} rows, base ${bytes(data.base[i])}, logs ${bytes(data.log[i])}` +
    `, ${data.commits[i]} commits wait${data.age[i] == null ? "" : `, the oldest for ${duration(data.age[i])}`}`;

  function at(event) {
    const place = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - place.left) / side);
    const number = Math.floor((event.clientY - place.top) / side) * columns + column;
    return column < columns && data && number < data.names.length ? number : -1;
  }

  function open(number) {
    const query = new URLSearchParams({ name: data.names[number] });
    htmx.ajax("GET", `${document.body.dataset.root}/files/group?${query}`, { target: "#group", swap: "innerHTML show:top" });
  }

  async function renew() {
    const answer = await load(box.dataset.from, box);
    if (!answer) return;
    data = answer;
    scale.hidden = !data.names.length;
    if (!data.names.length) return sayText(box, "The table has no rows yet.");
    clearText(box);
    if (!canvas.isConnected) box.prepend(canvas);
    chosen = Math.min(chosen, data.names.length - 1);
    paint();
  }

  canvas.addEventListener("mousemove", (event) => {
    const number = at(event);
    if (number < 0) return label.hide();
    const place = box.getBoundingClientRect();
    label.show(describe(number).replaceAll(", ", "\n").replace(": ", "\n"), event.clientX - place.left, event.clientY - place.top);
  });
  canvas.addEventListener("mouseleave", label.hide);
  canvas.addEventListener("click", (event) => {
    const number = at(event);
    if (number >= 0) open((chosen = number));
  });
  canvas.addEventListener("focus", () => ((focused = canvas.matches(":focus-visible")), paint()));
  canvas.addEventListener("blur", () => ((focused = false), paint()));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (event.key === "Enter") open(chosen);
    if (step === undefined) return;
    event.preventDefault();
    const next = chosen + step;
    if (next >= 0 && next < data.names.length) chosen = next;
    focused = true;
    paint();
    said.textContent = describe(chosen);
  });
  metric.addEventListener("change", paint);

  renew();
  return { renew, resize: paint, recolour: paint };
}
