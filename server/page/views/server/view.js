/** Server: what it is, how it does, and its sampler put to the test. */
import { count } from "../../lib/format.js";
import { html, useEffect, useMemo } from "../../lib/html.js";
import { info } from "../../lib/server.js";
import { Chart } from "../../parts/chart.js";
import { Choice } from "../../parts/controls.js";
import { Acceptance, Latency, Shares, Watched } from "./columns.js";
import { Facts } from "./facts.js";
import { points, recent, trouble, watchMetrics } from "./readings.js";
import { Verify } from "./verify.js";

/** @param {number} value */
const share = (value) => `${(100 * value).toFixed(value > 0 && value < 0.0995 ? 1 : 0)}%`;

const CHARTS = [
  { title: "Tokens a second", format: count, names: { generated: "generated", prompt: "prompt" } },
  { title: "Choices", format: count, names: { running: "running", waiting: "waiting" } },
  { title: "Cache", format: share, most: 1, names: { kv: "blocks in use", hits: "prefix hits" } },
];

export default function ServerView() {
  const ready = info.value !== null;
  useEffect(() => (ready ? watchMetrics() : undefined), [ready]);
  const all = points.value;
  const charts = useMemo(() => CHARTS.map(({ names, ...rest }) => ({
    ...rest,
    times: all.map((point) => point.time),
    series: Object.entries(names).map(([name, label]) => ({
      label, values: all.map((point) => point.values[name]),
    })),
  })), [all]);
  return html`
    <div class="charts">${charts.map((chart) => html`<${Chart} key=${chart.title} ...${chart} />`)}</div>
    <div class="toolbar"><span class="muted">counts</span>
      <${Choice} label="What counts show" options=${["all", "minute"]}
        names=${["since the start", "last minute"]} value=${recent.value ? "minute" : "all"}
        onChange=${(value) => (recent.value = value === "minute")} />
      <span class="failure" role="alert">${trouble.value}</span></div>
    <div class="latencies">
      <${Latency} title="Time to first token" metric="time_to_first_token_seconds" />
      <${Latency} title="Between tokens" metric="inter_token_latency_seconds" />
      <${Latency} title="Whole request" metric="e2e_request_latency_seconds" />
      <${Latency} title="In the queue" metric="request_queue_time_seconds" />
      <${Acceptance} />
      <${Shares} title="Rows by sampling path" metric="sampler_rows_total" label="path" />
      <${Shares} title="Requests by outcome" metric="request_outcomes_total" label="outcome" />
      <${Watched} />
    </div>
    <${Facts} />
    <${Verify} />`;
}
