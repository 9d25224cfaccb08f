/** Labels: a query, items and labels go in, a table of probabilities comes out. */
import { ApiError, json } from "../../lib/api.js";
import { count } from "../../lib/format.js";
import { html, signal } from "../../lib/html.js";
import { info } from "../../lib/server.js";
import * as snippet from "../../lib/snippet.js";
import { download, parseItems, toCsv } from "../../lib/table.js";
import { Copy, useId } from "../../parts/controls.js";
import { ScoreTable } from "./score_table.js";
import { itemFirst, itemsText, labelsText, query, softmax, sort } from "./state.js";

/**
 * @typedef {object} Scored
 * @property {string[]} items
 * @property {string[]} labels
 * @property {boolean} softmax
 * @property {number[][]} scores [items][labels], as the API gave them
 * @property {number[][]} logprobs [items][labels]
 * @property {number[]} other log of the mass that begins with no label
 * @property {any} usage
 * @property {number} seconds
 */

const scored = signal(/** @type {Scored | null} */ (null));
const running = signal(false);
const failure = signal("");

const labelsOf = () => labelsText.value.split("\n").filter((line) => line !== "");

function bodyOf() {
  return {
    model: info.value?.model,
    query: query.value,
    items: parseItems(itemsText.value).items,
    labels: labelsOf(),
    apply_softmax: softmax.value,
    ...(itemFirst.value ? { item_first: true } : {}),
  };
}

/** Ask for the scores of what is entered. */
export async function score() {
  failure.value = "";
  running.value = true;
  const body = bodyOf();
  const began = performance.now();
  try {
    const reply = await json("v1/score", body);
    if (sort.value.column > body.labels.length) sort.value = { column: -1, down: false };
    scored.value = {
      items: body.items, labels: body.labels, softmax: body.apply_softmax, scores: reply.scores,
      logprobs: reply.label_logprobs, other: reply.other_logprob, usage: reply.usage,
      seconds: (performance.now() - began) / 1e3,
    };
  } catch (error) {
    failure.value = error instanceof ApiError ? error.message : String(error);
  }
  running.value = false;
}

export function Labels() {
  const ids = useId();
  const found = parseItems(itemsText.value);
  const names = labelsOf();
  const area = (/** @type {string} */ name, /** @type {any} */ value, /** @type {any} */ hint) =>
    html`<div class=${`field ${name}`}><label for=${`${ids}-${name}`}>${name}
      <span class="muted">${hint}</span></label>
      <textarea id=${`${ids}-${name}`} class="mono" spellcheck=${false} value=${value.value}
        onInput=${(event) => (value.value = event.target.value)}></textarea></div>`;
  return html`<div class="scoring">
    <section class="panel inputs" aria-label="What to score">
      ${area("query", query, "")}
      ${area("items", itemsText, `${count(found.items.length)} from ${found.from}; paste CSV or JSON lines`)}
      ${area("labels", labelsText, `${names.length}, one a line`)}
      <p class="row"><label><input type="checkbox" checked=${softmax.value}
          onChange=${(event) => (softmax.value = event.target.checked)} /> softmax over labels</label>
        <label><input type="checkbox" checked=${itemFirst.value}
          onChange=${(event) => (itemFirst.value = event.target.checked)} /> item before query</label></p>
      <p class="row"><button type="button" class="main" disabled=${running.value} onClick=${score}
        title="Ctrl+Enter">Score</button><span class="failure" role="alert">${failure.value}</span></p>
    </section>
    <section class="panel results" aria-label="Scores">
      ${scored.value ? html`<${Results} found=${scored.value} />`
        : html`<p class="muted">How likely is each label after the query and each item? The mass that
          begins with no label is shown beside them.</p>`}
    </section>
  </div>`;
}

/** @param {{found: Scored}} props */
function Results({ found }) {
  const rows = () => found.items.map((item, i) =>
    [item, ...found.scores[i], ...found.logprobs[i], found.other[i]]);
  const header = () => ["item", ...found.labels, ...found.labels.map((name) => `log ${name}`),
    "log others"];
  const objects = () => found.items.map((item, i) => ({
    item,
    scores: Object.fromEntries(found.labels.map((name, k) => [name, found.scores[i][k]])),
    label_logprobs: Object.fromEntries(found.labels.map((name, k) => [name, found.logprobs[i][k]])),
    other_logprob: found.other[i],
  }));
  return html`<div class="stats"><span><b>${count(found.items.length)}</b> items</span>
      <span><b>${count(found.usage.prompt_tokens)}</b> tokens</span>
      <span><b>${count(found.items.length / found.seconds)}</b> items/s</span>
      <span class="copies">
        <button type="button" class="quiet" onClick=${() =>
          download("scores.csv", "text/csv", toCsv([header(), ...rows()]))}>CSV</button>
        <button type="button" class="quiet" onClick=${() =>
          download("scores.json", "application/json", JSON.stringify(objects(), null, 1))}
          >JSON</button>
        <${Copy} label="curl" title="Copy as a curl command"
          text=${() => snippet.curl("v1/score", bodyOf())} />
        <${Copy} label="Python" title="Copy as a Python program"
          text=${() => snippet.python("v1/score", bodyOf())} />
      </span></div>
    <${ScoreTable} found=${found} />`;
}
