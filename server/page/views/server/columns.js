/** Columns: histograms of latencies, drafts accepted by position, rows by sampling path. */
import { count, percent, seconds } from "../../lib/format.js";
import { html } from "../../lib/html.js";
import { quantile } from "../../lib/prom.js";
import { countOf, countsOf, histogramOf } from "./readings.js";

/**
 * Columns with a name under the first and the last, and each one's words where it is pointed at.
 * @param {{columns: {height: number, title: string}[], ends: [string, string], label: string}} props
 */
function Columns({ columns, ends, label }) {
  return html`<div class="columns" role="img" aria-label=${label}>
    <div class="bars">${columns.map(({ height, title }) => html`<span title=${title}><i
      style=${{ height: `${100 * height}%` }}></i></span>`)}</div>
    <div class="ends" aria-hidden="true"><span>${ends[0]}</span><span>${ends[1]}</span></div>
  </div>`;
}

/** @param {{title: string, metric: string}} props */
export function Latency({ title, metric }) {
  const found = histogramOf(metric);
  const total = found ? found.counts.reduce((a, b) => a + b, 0) : 0;
  const at = (/** @type {number} */ share) => seconds(found ? quantile(found, share) : null);
  const used = found ? found.counts.flatMap((each, i) => (each > 0 ? [i] : [])) : [];
  const [first, last] = used.length ? [Math.max(0, used[0] - 1), used[used.length - 1]] : [0, 8];
  const most = Math.max(1, ...(found?.counts ?? []));
  const columns = (found?.counts ?? []).slice(first, last + 1).map((each, i) => ({
    height: each / most,
    title: `${count(each)} up to ${seconds(found?.bounds[first + i])}`,
  }));
  const quantiles = [["p50", at(0.5)], ["p90", at(0.9)], ["p99", at(0.99)]];
  return html`<section class="panel latency" aria-label=${title}>
    <h2>${title} <span class="muted">${count(total)}</span></h2>
    <${Columns} columns=${columns} label=${`${title}: ${quantiles.flat().join(" ")}`}
      ends=${used.length ? [`≤ ${seconds(found?.bounds[first])}`, `≤ ${seconds(found?.bounds[last])}`]
        : ["", ""]} />
    <dl class="quantiles">${quantiles.map(([name, value]) => html`<div><dt>${name}</dt>
      <dd>${value}</dd></div>`)}</dl>
  </section>`;
}

export function Acceptance() {
  const drafts = countOf("spec_decode_num_drafts_total");
  const by = [...countsOf("spec_decode_num_accepted_tokens_per_pos_total", "position")]
    .sort((a, b) => Number(a[0]) - Number(b[0]));
  if (drafts === null) {
    return html`<section class="panel latency" aria-label="Speculation"><h2>Speculation</h2>
      <p class="muted">No drafter (--speculative-config).</p></section>`;
  }
  const shares = by.map(([, total]) => (drafts ? total / drafts : 0));
  const mean = shares.reduce((a, b) => a + b, 0);
  const columns = shares.map((share, i) => ({
    height: share, title: `draft ${i + 1}: ${percent(share)} accepted`,
  }));
  return html`<section class="panel latency" aria-label="Speculation">
    <h2>Accepted by position <span class="muted">${count(drafts)}</span></h2>
    <${Columns} columns=${columns} ends=${["first draft", "last"]}
      label=${`Accepted by position: ${shares.map(percent).join(", ")}`} />
    <dl class="quantiles">${shares.slice(0, 4).map((share, i) => html`<div><dt>${i + 1}</dt>
      <dd>${(100 * share).toFixed(0)}%</dd></div>`)}
      <div><dt>a step</dt><dd>${drafts ? (1 + mean).toFixed(2) : "–"}</dd></div></dl>
  </section>`;
}

const WATCHED = {
  num_preemptions_total: "preemptions", nan_rows_total: "rows with NaN",
  failed_steps_total: "failed steps", no_token_allowed_total: "no token allowed",
  grammar_errors_total: "grammar errors",
};

/** Counts that should stay 0, or low. */
export function Watched() {
  return html`<section class="panel shares" aria-label="Should stay low">
    <h2>Should stay low</h2>
    <table><tbody>${Object.entries(WATCHED).map(([metric, name]) => html`<tr>
      <th scope="row">${name}</th><td>${count(countOf(metric))}</td></tr>`)}</tbody></table>
  </section>`;
}

/** Shares of a counter by one of its labels. @param {{title: string, metric: string, label: string}} props */
export function Shares({ title, metric, label }) {
  const counts = [...countsOf(metric, label)];
  const total = counts.reduce((sum, [, each]) => sum + each, 0);
  return html`<section class="panel shares" aria-label=${title}>
    <h2>${title} <span class="muted">${count(total)}</span></h2>
    <table><tbody>${counts.map(([name, each]) => html`<tr><th scope="row">${name}</th>
      <td>${count(each)}</td><td class="share"><span class="bar" aria-hidden="true"><i
        style=${{ width: `${total ? (100 * each) / total : 0}%` }}></i></span></td></tr>`)}</tbody></table>
  </section>`;
}
