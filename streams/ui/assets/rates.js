// Rows per second of each stream over time.
import { axes, clearText, colour, load, times, utc } from "./drawing.js";

export function drawRates(box) {
  let plot = null;
  let data = null;

  const size = () => ({ width: Math.max(240, box.clientWidth - 24), height: 240 });

  function build() {
    plot?.destroy();
    const series = data.streams.map((name, number) => ({
      label: name,
      stroke: colour(`s${(number % 8) + 1}`),
      width: 2,
      points: { show: false },
      value: (_, value) => (value == null ? "–" : `${value.toLocaleString("en", { maximumFractionDigits: 1 })}/s`),
    }));
    plot = new uPlot(
      {
        ...size(),
        tzDate: utc,
        series: [{}, ...series],
        axes: [{ ...axes(), space: 70, values: times }, { ...axes(), size: 58 }],
        scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
        cursor: { points: { size: 7 }, drag: { x: false, y: false } },
      },
      [data.times, ...data.rates],
      box,
    );
  }

  async function renew() {
    const answer = await load(box.dataset.from, box);
    if (!answer) return;
    clearText(box);
    const same = data && data.streams.join() === answer.streams.join();
    data = answer;
    if (same) plot.setData([data.times, ...data.rates]);
    else build();
  }

  renew();
  return { renew, resize: () => plot?.setSize(size()), recolour: () => data && build() };
}
