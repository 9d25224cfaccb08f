/** Readings of /metrics, one every two seconds while the view is shown, and what they say. */
import { ApiError, request } from "../../lib/api.js";
import { signal } from "../../lib/html.js";
import { byLabel, histogram, parse, since, value } from "../../lib/prom.js";
import { info } from "../../lib/server.js";

const EVERY_MS = 2000;
const MOST_POINTS = 450;
/** Readings that the histograms of the last minute go back. */
const MINUTE = 30;

/** @typedef {{time: number, values: Record<string, number | null>}} Point */

/** Points over time, oldest first. */
export const points = signal(/** @type {Point[]} */ ([]));
/** The latest reading. */
export const latest = signal(/** @type {import("../../lib/prom.js").Reading | null} */ (null));
export const trouble = signal("");
/** Whether histograms show the last minute or all that was counted. */
export const recent = signal(false);

/** @type {{time: number, reading: import("../../lib/prom.js").Reading}[]} */
const kept = [];

/** A metric's name on this server. @param {string} name */
export const named = (name) => `${info.value?.metrics_prefix ?? "tailrace_"}${name}`;

const RATES = {
  generated: "generation_tokens_total",
  prompt: "prompt_tokens_total",
  steps: "engine_steps_total",
};
const GAUGES = {
  running: "num_requests_running", waiting: "num_requests_waiting", kv: "kv_cache_usage_perc",
};

async function read() {
  try {
    const text = await (await request("metrics")).text();
    take(parse(text), Date.now() / 1e3);
    trouble.value = "";
  } catch (error) {
    trouble.value = error instanceof ApiError ? error.message : String(error);
  }
}

/** @param {import("../../lib/prom.js").Reading} reading @param {number} time */
function take(reading, time) {
  const before = kept[kept.length - 1];
  /** @type {Record<string, number | null>} */
  const values = {};
  for (const [name, metric] of Object.entries(GAUGES)) values[name] = value(reading, named(metric));
  for (const [name, metric] of Object.entries(RATES)) {
    values[name] = before ? change(reading, before.reading, metric) / (time - before.time) : null;
  }
  const asked = before ? change(reading, before.reading, "prefix_cache_queries_total") : 0;
  values.hits = asked > 0
    ? change(reading, before.reading, "prefix_cache_hits_total") / asked : null;
  kept.push({ time, reading });
  if (kept.length > MINUTE + 1) kept.shift();
  points.value = [...points.value.slice(1 - MOST_POINTS), { time, values }];
  latest.value = reading;
}

/**
 * @param {import("../../lib/prom.js").Reading} now
 * @param {import("../../lib/prom.js").Reading} before
 * @param {string} metric
 */
const change = (now, before, metric) =>
  Math.max(0, (value(now, named(metric)) ?? 0) - (value(before, named(metric)) ?? 0));

/** Read now and then, while the page is to be seen; returns what ends it. */
export function watchMetrics() {
  let timer = /** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined);
  let ended = false;
  const turn = async () => {
    if (!document.hidden) await read();
    if (!ended) timer = setTimeout(turn, EVERY_MS);
  };
  turn();
  return () => {
    ended = true;
    clearTimeout(timer);
  };
}

/** A histogram of the latest reading, or of the last minute. @param {string} name */
export function histogramOf(name) {
  const now = latest.value && histogram(latest.value, named(name));
  if (!now || !recent.value || kept.length < 2) return now;
  return since(now, histogram(kept[0].reading, named(name)));
}

/** A counter by label, all in all or of the last minute. @param {string} name @param {string} label */
export function countsOf(name, label) {
  if (!latest.value) return new Map();
  const now = byLabel(latest.value, named(name), label);
  if (!recent.value || kept.length < 2) return now;
  const before = byLabel(kept[0].reading, named(name), label);
  return new Map([...now].map(([key, total]) => [key, total - (before.get(key) ?? 0)]));
}

/** A counter, all in all or of the last minute. @param {string} name */
export function countOf(name) {
  if (!latest.value) return null;
  const now = value(latest.value, named(name));
  if (!recent.value || kept.length < 2 || now === null) return now;
  return now - (value(kept[0].reading, named(name)) ?? 0);
}
