// The log as swim-lanes. The server aggregates entries into cells, so that their number does not matter.
import { axes, clearText, colour, duration, load, times, tip, utc } from "./drawing.js";

const ROW = 24;
const OF_TABLE = [
  ["compactions", ["compaction", "plan", "ended"]],
  ["folds", ["fold"]],
  ["cleans", ["clean"]],
  ["savepoints", ["savepoint"]],
  ["restores", ["restore"]],
  ["closed lanes", ["closing"]],
  ["schema", ["schema"]],
  ["marks", ["mark"]],
];

export function drawTimeline(box) {
  const note = document.getElementById("timeline-note");
  const announced = document.getElementById("timeline-said");
  const label = tip(box);
  let plot = null;
  let found = null;
  let rows = [];
  let cells = [];
  let bars = [];
  let span = null; // [begin, end] in milliseconds; null: everything
  let asked = 0;
  let chosen = null; // { label, seq } of the entry that the keyboard has reached

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
    const stop = chosenStop();
    if (stop && box.matches(":focus")) {
      ctx.strokeStyle = colour("ink");
      ctx.lineWidth = 2 * ratio;
      ctx.strokeRect(left + wide * stop.from - 2 * ratio, top + row * stop.number + ratio, Math.max(least, wide * (stop.to - stop.from)) + 4 * ratio, row - 2 * ratio);
    }
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
        padding: [6, 30, 0, 0],
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
    const most = gutter() < 100 ? 11 : 19;
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

  function wordsOfBar(bar) {
    const what = bar.kind === "plan" ? "compaction" : bar.kind;
    const long = duration((bar.end - bar.begin) / 1000);
    return `${what}, entry ${bar.seq}: ${bar.open ? `open for ${long}` : `took ${long}`}\nbegun ${said(bar.begin)} UTC`;
  }

  function wordsOfCell(cell, row) {
    const when = said(timeOf(cell.part));
    if (cell.guessed) return `${row.label} · about ${cell.count.toLocaleString("en")} entries, not read yet\n${when} UTC`;
    const many = cell.count === 1 ? `${cell.kind} ${cell.seq}` : `${cell.count.toLocaleString("en")} × ${cell.kind}, up to ${cell.seq}`;
    const sum = cell.rows ? `\n${cell.rows.toLocaleString("en")} rows` : "";
    return `${row.label} · ${many}${sum}\n${when} UTC`;
  }

  function hover(event) {
    const { best, bar, row, x, y } = at(event);
    plot.over.style.cursor = best || bar ? "pointer" : "crosshair";
    if (bar || best) label.show(bar ? wordsOfBar(bar) : wordsOfCell(best, row), x, y);
    else label.hide();
  }

  function choose(event) {
    const { best, bar, row } = at(event);
    if (best || bar) open(row, (best || bar).seq);
  }

  function open(row, seq) {
    const query = new URLSearchParams({ lane: row.lane, seq });
    htmx.ajax("GET", `${document.body.dataset.root}/timeline/entry?${query}`, { target: "#entry", swap: "innerHTML show:top" });
  }

  // What the keyboard goes through in a row, by time: cells and bars, with their place as a share of the span.
  function stopsOf(number) {
    const whole = found.end - found.begin + 1;
    const stop = (each, from, to, words) => ({ number, seq: each.seq, from, to, words });
    const ofCells = cells[number].map((each) => stop(each, each.part / found.parts, (each.part + 1) / found.parts, () => wordsOfCell(each, rows[number])));
    const ofBars = bars[number].map((each) => stop(each, (each.begin - found.begin) / whole, (each.end - found.begin) / whole, () => wordsOfBar(each)));
    return [...ofCells, ...ofBars].filter((each) => each.to >= 0 && each.from <= 1).sort((one, other) => one.from - other.from || one.seq - other.seq);
  }

  function chosenStop() {
    if (!chosen || !found) return null;
    const number = rows.findIndex((row) => row.label === chosen.label);
    if (number < 0) return null;
    const stops = stopsOf(number);
    return stops.find((each) => each.seq === chosen.seq) ?? stops.findLast((each) => each.seq <= chosen.seq) ?? stops.at(-1) ?? null;
  }

  function go(along, across) {
    if (!found) return;
    const stop = chosenStop();
    let next = null;
    if (!stop) {
      for (let number = 0; number < rows.length && !next; number++) next = stopsOf(number).at(-1) ?? null; // the newest one
    } else if (along) {
      const stops = stopsOf(stop.number);
      next = stops[stops.findIndex((each) => each.seq === stop.seq && each.from === stop.from) + along] ?? null;
    } else {
      for (let number = stop.number + across; rows[number] && !next; number += across) {
        next = stopsOf(number).reduce((best, each) => (best && Math.abs(best.from - stop.from) <= Math.abs(each.from - stop.from) ? best : each), null);
      }
    }
    if (next) chosen = { label: rows[next.number].label, seq: next.seq };
    announced.textContent = chosenStop()?.words().replaceAll("\n", ", ") ?? "";
    plot.redraw();
  }

  function show() {
    const stop = chosenStop();
    if (stop) open(rows[stop.number], stop.seq);
  }

  function zoomTo(next) {
    span = next && next[1] - next[0] > 20 ? next.map(Math.round) : null;
    renew();
  }

  function zoomBy(factor, shift = 0) {
    if (!found) return;
    // Of a short history the view ends after its last entry: there is nothing to zoom into.
    const [begin, end] = [Math.max(found.first, found.begin), Math.min(found.last, found.end)];
    const middle = (begin + end) / 2 + shift * (end - begin);
    const half = ((end - begin) * factor) / 2;
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
    note.textContent = `${total.toLocaleString("en")} ${total === 1 ? "entry" : "entries"}` + (found.loaded < 1 ? `; ${Math.floor(found.loaded * 100)} % of the log was read so far, pale is estimated` : "");
    if (found.loaded < 1) setTimeout(renew, 700);
  }

  const keys = { "+": () => zoomBy(0.5), "=": () => zoomBy(0.5), "-": () => zoomBy(2), 0: () => zoomTo(null), ArrowLeft: () => go(-1, 0), ArrowRight: () => go(1, 0), ArrowUp: () => go(0, -1), ArrowDown: () => go(0, 1), Enter: show };
  const shifted = { ArrowLeft: () => zoomBy(1, -0.25), ArrowRight: () => zoomBy(1, 0.25) };
  box.addEventListener("keydown", (event) => {
    const act = (event.shiftKey && shifted[event.key]) || keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
  box.addEventListener("focus", () => plot?.redraw());
  box.addEventListener("blur", () => plot?.redraw());
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
