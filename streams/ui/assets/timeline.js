// The log as swim-lanes. The server aggregates entries into cells, so that their number does not matter.
import { axes, clearText, colour, duration, load, times, tip, utc } from "./drawing.js";

const ROW = 24;
const OF_TABLE = [
  ["compactions", ["compaction", "plan", "ended"]],
  ["folds", ["fold"]],
  ["cleans", ["clean"]],
  ["savepoints", ["savepoint"]],
  ["restores", ["restore"]],
  ["schema", ["schema"]],
  ["marks", ["mark"]],
];

export function drawTimeline(box) {
  const note = document.getElementById("timeline-note");
  const label = tip(box);
  let plot = null;
  let found = null;
  let rows = [];
  let cells = [];
  let bars = [];
  let span = null; // [begin, end] in milliseconds; null: everything
  let asked = 0;

  const width = () => Math.max(280, box.clientWidth - 12);
  const gutter = () => (box.clientWidth < 500 ? 92 : 150);
  const parts = () => Math.max(60, Math.min(1200, Math.round((width() - gutter()) / 2)));

  function arrange() {
    rows = [];
    const places = new Map();
    found.lanes.forEach((lane, number) => {
      if (lane.name === "") return;
      const other = lane.stream && lane.stream !== lane.name ? ` (${lane.stream})` : "";
      places.set(`${number}`, rows.length);
      rows.push({ label: lane.name + other, lane: lane.name });
    });
    const table = found.lanes.findIndex((lane) => lane.name === "");
    const [lane, part, kind, count, summed, seq, guessed] = found.cells;
    const used = new Set(kind.filter((_, i) => lane[i] === table).map((k) => found.kinds[k]));
    for (const [, , what] of found.plans) used.add(what);
    for (const [name, kinds] of OF_TABLE) {
      if (!kinds.some((each) => used.has(each))) continue;
      kinds.forEach((each) => places.set(`${table}:${each}`, rows.length));
      rows.push({ label: name, lane: "" });
    }
    cells = rows.map(() => []);
    bars = rows.map(() => []);
    for (const [begin, end, what, first, open] of found.plans) {
      bars[places.get(`${table}:${what}`)].push({ begin, end, kind: what, seq: first, open });
    }
    for (let i = 0; i < lane.length; i++) {
      const name = found.kinds[kind[i]];
      if (name === "plan") continue; // its bar is drawn
      const place = lane[i] === table ? places.get(`${table}:${name}`) : places.get(`${lane[i]}`);
      if (place !== undefined) cells[place].push({ part: part[i], kind: name, count: count[i], rows: summed[i], seq: seq[i], guessed: guessed[i] });
    }
  }

  function paint(u) {
    const { ctx } = u;
    const ratio = devicePixelRatio;
    const { left, top, width: wide, height: high } = u.bbox;
    const row = high / Math.max(1, rows.length);
    const one = wide / found.parts;
    const colours = Object.fromEntries(found.kinds.map((kind) => [kind, colour(`k-${kind}`)]));
    const least = 2.5 * ratio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, wide, high);
    ctx.clip();
    const wholeSpan = Math.max(1, found.end - found.begin + 1);
    bars.forEach((list, number) => {
      for (const each of list) {
        const from = left + (wide * (each.begin - found.begin)) / wholeSpan;
        const long = Math.max(least, (wide * (each.end - each.begin)) / wholeSpan);
        const [y, height] = [top + row * (number + 0.24), row * 0.52];
        ctx.fillStyle = colours.plan;
        ctx.globalAlpha = each.open ? 0.5 : 1;
        ctx.fillRect(from, y, long, height);
        ctx.globalAlpha = 1;
        if (each.open) {
          ctx.strokeStyle = colours.compaction;
          ctx.lineWidth = 1.5 * ratio;
          ctx.setLineDash([4 * ratio, 3 * ratio]);
          ctx.strokeRect(from, y, long, height);
          ctx.setLineDash([]);
        }
      }
    });
    cells.forEach((list, number) => {
      const most = Math.log1p(list.reduce((all, each) => (each.kind === "claim" ? all : Math.max(all, each.count)), 1));
      for (const pass of [false, true]) {
        for (const each of list) {
          if ((each.kind === "claim") !== pass) continue;
          const tall = each.kind === "claim" || each.kind === "ended" ? 0.9 : 0.35 + (0.5 * Math.log1p(each.count)) / most;
          const height = row * tall;
          ctx.fillStyle = colours[each.kind];
          ctx.globalAlpha = each.guessed ? 0.35 : 1;
          ctx.fillRect(left + each.part * one, top + row * number + (row - height) / 2, Math.max(least, one * 0.92), height);
        }
      }
    });
    ctx.globalAlpha = 1;
    ctx.restore();
  }

  function build() {
    plot?.destroy();
    const labels = rows.map((row) => row.label);
    const height = rows.length * ROW + 46;
    plot = new uPlot(
      {
        width: width(),
        height,
        tzDate: utc,
        legend: { show: false },
        padding: [6, 8, 0, 0],
        series: [{}, { show: true, stroke: "transparent", points: { show: false } }],
        scales: {
          x: { time: true, range: () => [found.begin / 1000, Math.max(found.end, found.begin + 1) / 1000] },
          y: { range: () => [0, Math.max(1, rows.length)] },
        },
        axes: [
          { ...axes(), space: 80, values: times },
          {
            ...axes(),
            size: gutter(),
            gap: 6,
            splits: () => labels.map((_, number) => rows.length - number - 0.5),
            values: () => labels.map(shortened),
            grid: { show: false },
            ticks: { show: false },
          },
        ],
        cursor: {
          points: { show: false },
          y: false,
          drag: { x: true, y: false, setScale: false },
          bind: { dblclick: () => () => zoomTo(null) },
        },
        hooks: {
          draw: [paint],
          setSelect: [
            (u) => {
              if (u.select.width < 4) return;
              const begin = u.posToVal(u.select.left, "x") * 1000;
              const end = u.posToVal(u.select.left + u.select.width, "x") * 1000;
              u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
              zoomTo([begin, end]);
            },
          ],
        },
      },
      [[found.begin / 1000, Math.max(found.end, found.begin + 1) / 1000], [null, null]],
      box,
    );
    plot.over.addEventListener("mousemove", hover);
    plot.over.addEventListener("mouseleave", label.hide);
    plot.over.addEventListener("click", choose);
  }

  const shortened = (text) => {
    const most = gutter() < 100 ? 12 : 21;
    return text.length > most ? `${text.slice(0, most - 1)}…` : text;
  };

  function at(event) {
    const place = plot.over.getBoundingClientRect();
    const x = event.clientX - place.left;
    const y = event.clientY - place.top;
    const number = Math.floor((y / place.height) * rows.length);
    const part = (x / place.width) * found.parts;
    const slack = Math.max(1, (5 / place.width) * found.parts);
    let best = null;
    for (const each of cells[number] || []) {
      const far = Math.abs(each.part + 0.5 - part);
      if (far <= slack && (!best || far < Math.abs(best.part + 0.5 - part))) best = each;
    }
    const time = timeOf(part);
    const near = ((found.end - found.begin) * 3) / place.width;
    const bar = best ? null : (bars[number] || []).findLast((each) => each.begin - near <= time && time <= each.end + near);
    return { best, bar, row: rows[number], x: event.clientX - box.getBoundingClientRect().left, y: event.clientY - box.getBoundingClientRect().top };
  }

  const timeOf = (part) => found.begin + ((found.end - found.begin + 1) * part) / found.parts;

  const said = (time) => new Date(time).toISOString().replace("T", " ").slice(0, 19);

  function hover(event) {
    const { best, bar, row, x, y } = at(event);
    plot.over.style.cursor = best || bar ? "pointer" : "crosshair";
    if (bar) {
      const what = bar.kind === "plan" ? "compaction" : bar.kind;
      const long = duration((bar.end - bar.begin) / 1000);
      return label.show(`${what}, entry ${bar.seq}: ${bar.open ? `open for ${long}` : `took ${long}`}\nbegun ${said(bar.begin)} UTC`, x, y);
    }
    if (!best) return label.hide();
    const when = said(timeOf(best.part));
    if (best.guessed) return label.show(`${row.label} · about ${best.count.toLocaleString("en")} entries, not read yet\n${when} UTC`, x, y);
    const many = best.count === 1 ? `${best.kind} ${best.seq}` : `${best.count.toLocaleString("en")} × ${best.kind}, up to ${best.seq}`;
    const sum = best.rows ? `\n${best.rows.toLocaleString("en")} rows` : "";
    label.show(`${row.label} · ${many}${sum}\n${when} UTC`, x, y);
  }

  function choose(event) {
    const { best, bar, row } = at(event);
    if (!best && !bar) return;
    const query = new URLSearchParams({ lane: row.lane, seq: (best || bar).seq });
    htmx.ajax("GET", `${document.body.dataset.root}/timeline/entry?${query}`, { target: "#entry", swap: "innerHTML show:top" });
  }

  function zoomTo(next) {
    span = next && next[1] - next[0] > 20 ? next.map(Math.round) : null;
    renew();
  }

  function zoomBy(factor, shift = 0) {
    if (!found) return;
    const middle = (found.begin + found.end) / 2 + shift * (found.end - found.begin);
    const half = ((found.end - found.begin) * factor) / 2;
    const next = [Math.max(found.first, middle - half), Math.min(found.last, middle + half)];
    zoomTo(next[0] <= found.first && next[1] >= found.last ? null : next);
  }

  async function renew() {
    const mine = ++asked;
    const query = new URLSearchParams({ parts: parts() });
    if (span) {
      query.set("begin", span[0]);
      query.set("end", span[1]);
    }
    const answer = await load(`${box.dataset.from}?${query}`, box);
    if (!answer || mine !== asked) return;
    clearText(box);
    const before = rows.map((row) => row.label).join("\n");
    found = answer;
    arrange();
    if (plot && before === rows.map((row) => row.label).join("\n")) {
      plot.setData([[found.begin / 1000, Math.max(found.end, found.begin + 1) / 1000], [null, null]]);
    } else {
      build();
    }
    const total = found.cells[3].reduce((sum, count) => sum + count, 0);
    note.textContent = `${total.toLocaleString("en")} entries` + (found.loaded < 1 ? `; ${Math.floor(found.loaded * 100)} % of the log was read so far, pale is estimated` : "");
    if (found.loaded < 1) setTimeout(renew, 700);
  }

  const keys = { "+": () => zoomBy(0.5), "=": () => zoomBy(0.5), "-": () => zoomBy(2), ArrowLeft: () => zoomBy(1, -0.25), ArrowRight: () => zoomBy(1, 0.25), 0: () => zoomTo(null) };
  box.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => {
      const given = button.dataset.zoom;
      if (given === "in") zoomBy(0.5);
      else if (given === "out") zoomBy(2);
      else zoomTo(given === "0" || !found ? null : [Math.max(found.first, found.last - given * 1000), found.last]);
    });
  }

  renew();
  return { renew, resize: () => found && (build(), renew()), recolour: () => found && build() };
}
