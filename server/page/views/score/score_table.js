/** The table of scores: a heat map whose rows are made only where they are seen. */
import { exact, percent, probabilityOf, tenth, visible } from "../../lib/format.js";
import { html, useEffect, useMemo, useRef, useState } from "../../lib/html.js";
import { sort } from "./state.js";

const ROW_PX = 26;
const AHEAD = 12;

/** @param {{found: import("./labels.js").Scored}} props */
export function ScoreTable({ found }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [first, setFirst] = useState(0);
  const [room, setRoom] = useState(40);
  const { column, down } = sort.value;
  const order = useMemo(() => orderOf(found, column, down), [found, column, down]);
  useEffect(() => {
    const watcher = new ResizeObserver(([entry]) =>
      setRoom(Math.ceil(entry.contentRect.height / ROW_PX)));
    if (box.current) watcher.observe(box.current);
    return () => watcher.disconnect();
  }, []);
  const from = Math.max(0, Math.min(first - AHEAD, order.length - 1));
  const to = Math.min(order.length, first + room + AHEAD);
  const pad = (/** @type {number} */ rows) => rows > 0 && html`<tr class="pad" aria-hidden="true"
    style=${{ height: `${rows * ROW_PX}px` }}></tr>`;
  return html`<div class="scroll" ref=${box} tabindex="0" role="group" aria-label="Table of scores"
      onScroll=${(event) => setFirst(Math.floor(event.target.scrollTop / ROW_PX))}>
    <table class="scores" aria-rowcount=${order.length + 2}>
      <${Head} found=${found} />
      <tbody>${pad(from)}
        ${order.slice(from, to).map((row, i) => html`<${Row} key=${row} found=${found} row=${row}
          place=${from + i} />`)}
      ${pad(order.length - to)}</tbody>
      <${Mean} found=${found} />
    </table></div>`;
}

/** @param {{found: import("./labels.js").Scored}} props */
function Head({ found }) {
  const { column, down } = sort.value;
  const by = (/** @type {number} */ wanted) => {
    sort.value = { column: wanted, down: wanted === column ? !down : wanted >= 0 };
  };
  const cell = (/** @type {number} */ i, /** @type {string} */ name, /** @type {string} */ kind) => html`
    <th scope="col" class=${kind} aria-sort=${i === column ? (down ? "descending" : "ascending") : "none"}>
      <button type="button" onClick=${() => by(i)}><code>${name}</code>${
        i === column ? (down ? " ↓" : " ↑") : ""}</button></th>`;
  return html`<thead><tr>${cell(-1, "item", "item")}
    ${found.labels.map((name, i) => cell(i, visible(name), ""))}
    ${cell(found.labels.length, "no label", "")}</tr></thead>`;
}

/** @param {{found: import("./labels.js").Scored, row: number, place: number}} props */
function Row({ found, row, place }) {
  return html`<tr aria-rowindex=${place + 2}>
    <th scope="row" class="item" title=${found.items[row]}><span class="muted">${row + 1}</span>
      <code>${visible(found.items[row]) || "∅"}</code></th>
    ${found.scores[row].map((score, i) => html`<${Cell} score=${score}
      logprob=${found.logprobs[row][i]} />`)}
    <${Cell} score=${probabilityOf(found.other[row])} logprob=${found.other[row]} other />
  </tr>`;
}

/** @param {{score: number, logprob: number, other?: boolean}} props */
function Cell({ score, logprob, other }) {
  const heat = score > 0.005 ? tenth(Math.sqrt(score)) : 0;
  return html`<td class=${`${other ? "o" : "h"}${heat}`} data-logprob=${logprob}
    title=${`score ${score}, logprob ${exact(logprob)}`}>${percent(score)}</td>`;
}

/** @param {{found: import("./labels.js").Scored}} props */
function Mean({ found }) {
  const mean = (/** @type {number[]} */ values) =>
    values.reduce((a, b) => a + b, 0) / Math.max(1, values.length);
  return html`<tfoot><tr><th scope="row" class="item">mean</th>
    ${found.labels.map((_, k) => html`<td>${percent(mean(found.scores.map((row) => row[k])))}</td>`)}
    <td>${percent(mean(found.other.map(probabilityOf)))}</td></tr></tfoot>`;
}

/**
 * Indices of the items in the order of a column.
 * @param {import("./labels.js").Scored} found
 * @param {number} column
 * @param {boolean} down
 */
function orderOf(found, column, down) {
  const order = found.items.map((_, i) => i);
  if (column < 0) return down ? order.reverse() : order;
  const value = (/** @type {number} */ i) =>
    (column < found.labels.length ? found.logprobs[i][column] : found.other[i]);
  return order.sort((a, b) => (down ? value(b) - value(a) : value(a) - value(b)) || a - b);
}
