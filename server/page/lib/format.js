/** Numbers and tokens as people read them. */

/** The number that the API writes for -inf. */
export const MINUS_INF = -9999;

/** @param {number} logprob */
export const probabilityOf = (logprob) => (logprob <= MINUS_INF ? 0 : Math.exp(logprob));

/**
 * A probability as a percentage of four figures: `43.21%`, `0.04321%`, `<1e-6%`.
 * @param {number} p
 */
export function percent(p) {
  if (!(p > 0)) return "0%";
  const value = 100 * p;
  if (value >= 99.995) return value >= 99.99995 ? "100%" : `${value.toFixed(4)}%`;
  if (value >= 10) return `${value.toFixed(2)}%`;
  if (value >= 1) return `${value.toFixed(3)}%`;
  if (value >= 1e-3) return `${value.toPrecision(4)}%`;
  return `${value.toExponential(1)}%`;
}

/**
 * A value of the API, to the last digit it came with.
 * @param {number | null | undefined} logprob
 */
export function exact(logprob) {
  if (logprob === null || logprob === undefined) return "–";
  return logprob <= MINUS_INF ? "−∞" : String(logprob);
}

/**
 * @param {number | null | undefined} value
 * @param {number} [digits]
 */
export function fixed(value, digits = 2) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === -Infinity) return "−∞";
  return value.toFixed(digits).replace("-", "−");
}

/**
 * A count with thin spaces between thousands, a rate with a digit after the point where small.
 * @param {number | null | undefined} value
 */
export function count(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const text = value < 10 && !Number.isInteger(value) ? value.toFixed(1) : String(Math.round(value));
  return text.replace(/\B(?=(\d{3})+$)/g, "\u2009");
}

/**
 * @param {number | null | undefined} value seconds
 */
export function seconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value < 1e-3) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.01 ? 2 : value < 0.1 ? 1 : 0)} ms`;
  return `${value.toFixed(value < 10 ? 2 : 1)} s`;
}

/**
 * A token's text in one line, with its white space to be seen.
 * @param {string} text
 */
export function visible(text) {
  if (text === "") return "∅";
  return text
    .replace(/ /g, "·")
    .replace(/\n/g, "↵")
    .replace(/\t/g, "⇥")
    .replace(/\r/g, "␍")
    .replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, (c) =>
      `⟨${c.charCodeAt(0).toString(16).padStart(2, "0")}⟩`);
}

/**
 * The step of a scale of ten for a share between 0 and 1.
 * @param {number} share
 */
export const tenth = (share) => Math.max(0, Math.min(9, Math.floor(share * 10)));
