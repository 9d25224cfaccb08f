/** A check as a picture: where its statistic lies in what was to be expected. */
import { html } from "../../lib/html.js";

const [WIDTH, HEIGHT] = [150, 22];

/**
 * What a check's words say in numbers; null where there is nothing to draw.
 * @param {{statistic: string, threshold: string}} check
 */
export function read({ statistic, threshold }) {
  const chi = /^chi2\((\d+)\) = ([\d.]+)$/.exec(statistic);
  if (chi) return { kind: "chi2", freedom: +chi[1], value: +chi[2], limit: +threshold };
  const counted = /^(\d+) of ([\d.]+)$/.exec(statistic);
  const range = /^(\d+) to (\d+)$/.exec(threshold);
  if (counted && range) {
    return { kind: "count", value: +counted[1], mean: +counted[2], low: +range[1], high: +range[2] };
  }
  const replayed = /^(\d+) of (\d+)/.exec(statistic);
  if (replayed && threshold.startsWith("all")) {
    return { kind: "replay", value: +replayed[1], of: +replayed[2] };
  }
  return null;
}

/** Density of a normal distribution, 1 at its top. */
const bell = (/** @type {number} */ z) => Math.exp((-z * z) / 2);

/** @param {{check: import("./verify.js").Check}} props */
export function Drawing({ check }) {
  const found = /** @type {any} */ (read(check));
  if (!found) return null;
  if (found.kind === "replay") return html`<${Dots} value=${found.value} of=${found.of} />`;
  // The cube root of a chi-square is nearly normal (Wilson and Hilferty 1931), as is the square
  // root of a Poisson count: on these scales one bell serves for all.
  const [place, spread] = found.kind === "chi2"
    ? [(/** @type {number} */ x) => Math.cbrt(x / found.freedom), Math.sqrt(2 / (9 * found.freedom))]
    : [(/** @type {number} */ x) => Math.sqrt(x), 0.5];
  const centre = found.kind === "chi2" ? 1 - 2 / (9 * found.freedom) : Math.sqrt(found.mean);
  const limits = (found.kind === "chi2" ? [found.limit] : [found.low, found.high])
    .map((x) => (place(x) - centre) / spread);
  const most = Math.max(4, ...limits.map(Math.abs), Math.abs((place(found.value) - centre) / spread)) * 1.05;
  const x = (/** @type {number} */ z) => ((z + most) / (2 * most)) * WIDTH;
  const curve = Array.from({ length: 61 }, (_, i) => -most + (2 * most * i) / 60)
    .map((z) => `${x(z).toFixed(1)},${(HEIGHT - 2 - bell(z) * (HEIGHT - 5)).toFixed(1)}`);
  const at = x((place(found.value) - centre) / spread);
  return html`<svg width=${WIDTH} height=${HEIGHT} viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img"
      aria-label=${`${check.statistic} among what was to be expected`}>
    <polyline class="bell" points=${curve.join(" ")} />
    ${limits.map((z) => html`<line class="limit" x1=${x(z)} x2=${x(z)} y1="2" y2=${HEIGHT - 2} />`)}
    <line class="value" x1=${at} x2=${at} y1="1" y2=${HEIGHT - 1} /></svg>`;
}

/** Rare tokens that were drawn again, each a dot. @param {{value: number, of: number}} props */
function Dots({ value, of }) {
  const step = WIDTH / Math.max(of, 1);
  return html`<svg width=${WIDTH} height=${HEIGHT} viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img"
      aria-label=${`${value} of ${of}`}>${Array.from({ length: of }, (_, i) => html`<circle
    class=${i < value ? "won" : "lost"} cx=${(i + 0.5) * step} cy=${HEIGHT / 2}
    r=${Math.min(2.2, step / 2.4)} />`)}</svg>`;
}
