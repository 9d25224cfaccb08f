/** Prometheus' text format, and what two readings of it say of the time between. */

/** @typedef {{labels: Record<string, string>, value: number}} Sample */
/** @typedef {Map<string, Sample[]>} Reading samples by name */
/** @typedef {{bounds: number[], counts: number[], sum: number}} Histogram counts of each bucket */

/**
 * @param {string} text
 * @returns {Reading}
 */
export function parse(text) {
  /** @type {Reading} */
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match) continue;
    const samples = found.get(match[1]) ?? [];
    samples.push({ labels: parseLabels(match[2] ?? ""), value: parseValue(match[3]) });
    found.set(match[1], samples);
  }
  return found;
}

/** @param {string} text */
function parseValue(text) {
  if (text === "+Inf") return Infinity;
  return text === "-Inf" ? -Infinity : Number(text);
}

/** @param {string} text */
function parseLabels(text) {
  /** @type {Record<string, string>} */
  const labels = {};
  for (const [, name, value] of text.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
    labels[name] = value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
  }
  return labels;
}

/**
 * The sum of a metric's samples; null where it has none.
 * @param {Reading} reading
 * @param {string} name
 */
export function value(reading, name) {
  const samples = reading.get(name);
  return samples ? samples.reduce((total, each) => total + each.value, 0) : null;
}

/**
 * A metric's samples by one of its labels.
 * @param {Reading} reading
 * @param {string} name
 * @param {string} label
 * @returns {Map<string, number>}
 */
export function byLabel(reading, name, label) {
  const values = new Map();
  for (const { labels, value: each } of reading.get(name) ?? []) {
    values.set(labels[label], (values.get(labels[label]) ?? 0) + each);
  }
  return values;
}

/**
 * @param {Reading} reading
 * @param {string} name
 * @returns {Histogram | null}
 */
export function histogram(reading, name) {
  const cumulated = [...byLabel(reading, `${name}_bucket`, "le")]
    .map(([le, total]) => /** @type {[number, number]} */ ([parseValue(le), total]))
    .sort((a, b) => a[0] - b[0]);
  if (!cumulated.length) return null;
  return {
    bounds: cumulated.map(([bound]) => bound),
    counts: cumulated.map(([, total], i) => total - (i ? cumulated[i - 1][1] : 0)),
    sum: value(reading, `${name}_sum`) ?? 0,
  };
}

/**
 * What a histogram counted since an earlier reading of it.
 * @param {Histogram} now
 * @param {Histogram | null} before
 * @returns {Histogram}
 */
export function since(now, before) {
  if (!before) return now;
  return {
    bounds: now.bounds,
    counts: now.counts.map((each, i) => Math.max(0, each - (before.counts[i] ?? 0))),
    sum: now.sum - before.sum,
  };
}

/**
 * A quantile as Prometheus' `histogram_quantile` has it: linear within the bucket; null of nothing.
 * @param {Histogram} found
 * @param {number} share
 */
export function quantile(found, share) {
  const total = found.counts.reduce((a, b) => a + b, 0);
  if (!total) return null;
  let before = 0;
  for (let i = 0; i < found.counts.length; i += 1) {
    const here = found.counts[i];
    if (before + here >= share * total && here > 0) {
      const low = i ? found.bounds[i - 1] : 0;
      if (!Number.isFinite(found.bounds[i])) return low;
      return low + ((found.bounds[i] - low) * (share * total - before)) / here;
    }
    before += here;
  }
  return null;
}
