/** A chart over time: uPlot, in the page's colours, with a legend that shows the latest values. */
import uPlot from "../vendor/uplot.js";
import { html, useEffect, useRef, useSignal } from "../lib/html.js";

const HEIGHT_PX = 132;
const COLOURS = ["--bar-now", "--series-2", "--series-3"];

/** @param {string} name a variable of the style sheet */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/**
 * @param {string[]} labels
 * @param {(value: number) => string} format
 * @param {number | null} most the top of the scale, where it is fixed
 * @param {(index: number | null) => void} onPoint
 */
function optionsOf(labels, format, most, onPoint) {
  const axis = {
    stroke: () => colour("--muted"), grid: { stroke: () => colour("--line"), width: 1 },
    ticks: { show: false }, font: "11px system-ui, sans-serif",
  };
  return {
    width: 300,
    height: HEIGHT_PX,
    padding: [8, 8, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 6 }, drag: { setScale: false, x: false, y: false } },
    scales: { y: { range: (_, __, high) => [0, most ?? Math.max(1, high * 1.1)] } },
    axes: [
      { ...axis, space: 90, size: 22 },
      { ...axis, size: 46, space: 28, values: (_, all) => all.map(format) },
    ],
    series: [{}, ...labels.map((label, i) => ({
      label, width: 1.5, stroke: () => colour(COLOURS[i]), points: { show: false }, spanGaps: false,
    }))],
    hooks: { setCursor: [(plot) => onPoint(plot.cursor.idx ?? null)] },
  };
}

/**
 * @param {object} props
 * @param {string} props.title
 * @param {number[]} props.times seconds
 * @param {{label: string, values: (number | null)[]}[]} props.series
 * @param {(value: number) => string} props.format
 * @param {number} [props.most]
 */
export function Chart({ title, times, series, format, most }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const at = useSignal(/** @type {number | null} */ (null));
  const data = [times, ...series.map((each) => each.values)];
  useEffect(() => {
    const labels = series.map((each) => each.label);
    const element = /** @type {HTMLElement} */ (box.current);
    plot.current = new uPlot(
      optionsOf(labels, format, most ?? null, (i) => (at.value = i)), data, element);
    const watcher = new ResizeObserver(([entry]) =>
      plot.current.setSize({ width: Math.floor(entry.contentRect.width), height: HEIGHT_PX }));
    watcher.observe(element);
    const theme = new MutationObserver(() => plot.current.redraw());
    theme.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => {
      watcher.disconnect();
      theme.disconnect();
      plot.current.destroy();
    };
  }, []);
  useEffect(() => plot.current?.setData(data), [times, series]);
  const index = at.value !== null && at.value < times.length ? at.value : times.length - 1;
  const shown = (/** @type {number | null | undefined} */ value) =>
    (value === null || value === undefined ? "–" : format(value));
  const words = series.map(({ label, values }) => `${label} ${shown(values[index])}`);
  return html`<figure class="panel chart">
    <figcaption><b>${title}</b>${series.map(({ label, values }, i) => html`<span class=${`s${i}`}>
      <i aria-hidden="true"></i>${label} <b>${shown(values[index])}</b></span>`)}</figcaption>
    <div class="plot" ref=${box} role="img" aria-label=${`${title}: ${words.join(", ")}`}></div>
  </figure>`;
}
