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
  let data = null;
  let rows = [];
  let cells = [];
  let bars = [];
  let span = null; // [begin, end] in milliseconds; null: everything
  let requests = 0;
  let chosen = null; // { label, seq } of the entry that the keyboard has reached

  const width = () => Math.max(280, box.clientWidth - 12);
  const gutter = () => (box.clientWidth < 500 ? 92 : 150);
  const parts = () => Math.max(60, Math.min(1200, Math.round((width() - gutter()) / 2)));

  function arrange() {
    rows = [];
    const places = new Map();
    data.lanes.forEach((lane, number) => {
      if (lane.name === "") return;
      const other = lane.stream && lane.stream !== lane.name ? ` (${lane.stream})` : "";
      places.set(`${number}`, rows.length);
      rows.push({ label: lane.name + other, lane: lane.name });
    });
    const table = data.lanes.findIndex((lane) => lane.name === "");
    const [lane, part, kind, count, summed, seq, guessed] = data.cells;
    const used = new Set(kind.filter((_, i) => lane[i] === table).map((k) => data.kinds[k]));
    for (const [, , what] of data.plans) used.add(what);
    for (const [label, kinds] of OF_TABLE) {
      if (!kinds.some((name) => used.has(name))) continue;
      kinds.forEach((name) => places.set(`${table}:${name}`, rows.length));
      rows.push({ label, lane: "" });
    }
    cells = rows.map(() => []);
    bars = rows.map(() => []);
    for (const [begin, end, what, first, open] of data.plans) {
      bars[places.get(`${table}:${what}`)].push({ begin, end, kind: what, seq: first, open });
    }
    for (let i = 0; i < lane.length; i++) {
      const name = data.kinds[kind[i]];
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
    const one = wide / data.parts;
    const colours = Object.fromEntries(data.kinds.map((kind) => [kind, colour(`k-${kind}`)]));
    const least = 2.5 * ratio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, wide, high);
    ctx.clip();
    const wholeSpan = Math.max(1, data.end - data.begin + 1);
    bars.forEach((list, number) => {
      for (const bar of list) {
        const from = left + (wide * (bar.begin - data.begin)) / wholeSpan;
        const long = Math.max(least, (wide * (bar.end - bar.begin)) / wholeSpan);
        const [y, height] = [top + row * (number + 0.24), row * 0.52];
        ctx.fillStyle = colours.plan;
        ctx.globalAlpha = bar.open ? 0.5 : 1;
        ctx.fillRect(from, y, long, height);
        ctx.globalAlpha = 1;
        if (bar.open) {
          ctx.strokeStyle = colours.compaction;
          ctx.lineWidth = 1.5 * ratio;
          ctx.setLineDash([4 * ratio, 3 * ratio]);
          ctx.strokeRect(from, y, long, height);
          ctx.setLineDash([]);
        }
      }
    });
    cells.forEach((list, number) => {
      const most = Math.log1p(list.reduce((all, cell) => (cell.kind === "claim" ? all : Math.max(all, cell.count)), 1));
      for (const pass of [false, true]) {
        for (const cell of list) {
          if ((cell.kind === "claim") !== pass) continue;
          const tall = cell.kind === "claim" || cell.kind === "ended" ? 0.9 : 0.35 + (0.5 * Math.log1p(cell.count)) / most;
          const height = row * tall;
          ctx.fillStyle = colours[cell.kind];
          ctx.globalAlpha = cell.guessed ? 0.35 : 1;
          ctx.fillRect(left + cell.part * one, top + row * number + (row - height) / 2, Math.max(least, one * 0.92), height);
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
          x: { time: true, range: () => [data.begin / 1000, Math.max(data.end, data.begin + 1) / 1000] },
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
      [[data.begin / 1000, Math.max(data.end, data.begin + 1) / 1000], [null, null]],
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
    const part = (x / place.width) * data.parts;
    const slack = Math.max(1, (5 / place.width) * data.parts);
    let best = null;
    for (const cell of cells[number] || []) {
      const far = Math.abs(cell.part + 0.5 - part);
      if (far <= slack && (!best || far < Math.abs(best.part + 0.5 - part))) best = cell;
    }
    const time = timeOf(part);
    const near = ((data.end - data.begin) * 3) / place.width;
    const bar = best ? null : (bars[number] || []).findLast(({ begin, end }) => begin - near <= time && time <= end + near);
    return { best, bar, row: rows[number], x: event.clientX - box.getBoundingClientRect().left, y: event.clientY - box.getBoundingClientRect().top };
  }

  const timeOf = (part) => data.begin + ((data.end - data.begin + 1) * part) / data.parts;

  const formatTime = (time) => new Date(time).toISOString().replace("T", " ").slice(0, 19);

  function wordsOfBar(bar) {
    const what = bar.kind === "plan" ? "compaction" : bar.kind;
    const long = duration((bar.end - bar.begin) / 1000);
    return `${what}, entry ${bar.seq}: ${bar.open ? `open for ${long}` : `took ${long}`}\nbegun ${formatTime(bar.begin)} UTC`;
  }

  function wordsOfCell(cell, row) {
    const when = formatTime(timeOf(cell.part));
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

  // The cells and bars of a row that the keyboard moves through, by time; positions are shares of the span.
  function stopsOf(number) {
    const whole = data.end - data.begin + 1;
    const stop = (item, from, to, words) => ({ number, seq: item.seq, from, to, words });
    const ofCells = cells[number].map((cell) => stop(cell, cell.part / data.parts, (cell.part + 1) / data.parts, () => wordsOfCell(cell, rows[number])));
    const ofBars = bars[number].map((bar) => stop(bar, (bar.begin - data.begin) / whole, (bar.end - data.begin) / whole, () => wordsOfBar(bar)));
    return [...ofCells, ...ofBars].filter((stop) => stop.to >= 0 && stop.from <= 1).sort((one, other) => one.from - other.from || one.seq - other.seq);
  }

  function chosenStop() {
    if (!chosen || !data) return null;
    const number = rows.findIndex((row) => row.label === chosen.label);
    if (number < 0) return null;
    const stops = stopsOf(number);
    return stops.find((stop) => stop.seq === chosen.seq) ?? stops.findLast((stop) => stop.seq <= chosen.seq) ?? stops.at(-1) ?? null;
  }

  function go(along, across) {
    if (!data) return;
    const stop = chosenStop();
    let next = null;
    if (!stop) {
      for (let number = 0; number < rows.length && !next; number++) next = stopsOf(number).at(-1) ?? null; // the newest one
    } else if (along) {
      const stops = stopsOf(stop.number);
      next = stops[stops.findIndex((candidate) => candidate.seq === stop.seq && candidate.from === stop.from) + along] ?? null;
    } else {
      for (let number = stop.number + across; rows[number] && !next; number += across) {
        next = stopsOf(number).reduce((best, candidate) => (best && Math.abs(best.from - stop.from) <= Math.abs(candidate.from - stop.from) ? best : candidate), null);
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
    if (!data) return;
    // The view of a short history extends beyond its last entry, where there is nothing to zoom into.
    const [begin, end] = [Math.max(data.first, data.begin), Math.min(data.last, data.end)];
    const middle = (begin + end) / 2 + shift * (end - begin);
    const half = ((end - begin) * factor) / 2;
    const next = [Math.max(data.first, middle - half), Math.min(data.last, middle + half)];
    zoomTo(next[0] <= data.first && next[1] >= data.last ? null : next);
  }

  async function renew() {
    const request = ++requests;
    const query = new URLSearchParams({ parts: parts() });
    if (span) {
      query.set("begin", span[0]);
      query.set("end", span[1]);
    }
    const answer = await load(`${box.dataset.from}?${query}`, box);
    if (!answer || request !== requests) return;
    clearText(box);
    const before = rows.map((row) => row.label).join("\n");
    data = answer;
    arrange();
    if (plot && before === rows.map((row) => row.label).join("\n")) {
      plot.setData([[data.begin / 1000, Math.max(data.end, data.begin + 1) / 1000], [null, null]]);
    } else {
      build();
    }
    const total = data.cells[3].reduce((sum, count) => sum + count, 0);
    note.textContent = `${total.toLocaleString("en")} ${total === 1 ? "entry" : "entries"}` + (data.loaded < 1 ? `; ${Math.floor(data.loaded * 100)} % of the log was read so far, pale is estimated` : "");
    if (data.loaded < 1) setTimeout(renew, 700);
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
      const zoom = button.dataset.zoom;
      if (zoom === "in") zoomBy(0.5);
      else if (zoom === "out") zoomBy(2);
      else zoomTo(zoom === "0" || !data ? null : [Math.max(data.first, data.last - zoom * 1000), data.last]);
    });
  }

  renew();
  return { renew, resize: () => data && (build(), renew()), recolour: () => data && build() };
}
