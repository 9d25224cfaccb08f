/**
 * What can be said of a distribution of which only the top tokens are known: the rest of its mass
 * lies on tokens of which none is likelier than the last known one.
 *
 * A range is `[low, high]`. Sums are exact up to the rounding of doubles.
 */

/** @typedef {[number, number]} Range */
/** @typedef {{temperature: number, top_k: number, top_p: number, min_p: number}} Filters */
/** @typedef {"min-p" | "top-k" | "top-p" | null} Cut why a token was cut; null where it was kept */
/**
 * @typedef {object} Bounds
 * @property {Range[]} processed of each top token, its probability after temperature and filters
 * @property {(Cut | "open")[]} cuts why each is cut; `open` where that depends on the rest
 * @property {Range} kept share of the mass, at this temperature, that the filters leave
 * @property {Range} rest probability of all other tokens together after temperature and filters
 */

/** @param {number[]} p */
const sum = (p) => p.reduce((total, each) => total + each, 0);

/** @param {number} value @returns {number} */
const share = (value) => Math.max(0, Math.min(1, value));

/**
 * Entropy in bits.
 * @param {number[]} top probabilities of the top tokens, likeliest first
 * @param {number} vocabSize
 * @returns {Range}
 */
export function entropy(top, vocabSize) {
  const known = sum(top.map((p) => (p > 0 ? -p * Math.log2(p) : 0)));
  const mass = share(1 - sum(top));
  const others = vocabSize - top.length;
  const last = top[top.length - 1] ?? 1;
  if (mass < 1e-6 || others < 1 || last <= 0) return [known, known];
  // Least where the rest is on as few tokens as can be, most where it is spread evenly.
  const least = mass * -Math.log2(Math.max(last, mass / others));
  return [known + least, known + mass * Math.log2(others / mass)];
}

/**
 * The sum of weights p^power of the unknown tokens.
 * @param {number} mass
 * @param {number} last probability of the last known token
 * @param {number} others
 * @param {number} power
 * @returns {Range}
 */
function restWeight(mass, last, others, power) {
  if (mass <= 0 || others < 1 || last <= 0) return [0, 0];
  const packed = mass * Math.max(last, mass / others) ** (power - 1);
  const even = others * (mass / others) ** power;
  return packed < even ? [packed, even] : [even, packed];
}

/**
 * What temperature and filters make of a distribution, in the order min-p, top-k, top-p.
 * @param {number[]} top raw probabilities of the top tokens, likeliest first
 * @param {number} vocabSize
 * @param {Filters} filters temperature 0 is greedy, which leaves temperature and filters out
 * @returns {Bounds}
 */
export function processedBounds(top, vocabSize, filters) {
  const greedy = filters.temperature === 0;
  const power = greedy ? 1 : 1 / filters.temperature;
  const [minP, topK, topP] = greedy ? [0, 0, 1] : [filters.min_p, filters.top_k, filters.top_p];
  const first = top[0];
  // Relative to the first, so that no power of a small number vanishes.
  const weights = top.map((p) => (p / first) ** power);
  const others = vocabSize - top.length;
  const last = top[top.length - 1];
  const all = restWeight(share(1 - sum(top)) / first, last / first, others, power);
  const total = /** @type {Range} */ ([sum(weights) + all[0], sum(weights) + all[1]]);

  const cuts = weights.map((weight, i) => {
    if (weight < minP) return "min-p";
    return topK > 0 && i >= topK ? "top-k" : null;
  });
  const rest = restLeft(all, weights, others, minP, topK);
  const left = sum(weights.filter((_, i) => cuts[i] === null));
  const low = topP * (left + rest[0]);
  const high = topP * (left + rest[1]);
  const state = /** @type {(Cut | "open")[]} */ ([...cuts]);
  let before = 0;
  weights.forEach((weight, i) => {
    if (cuts[i] !== null) return;
    // The shortest prefix that reaches top-p: a token is in it while those before do not reach it.
    if (topP < 1 && i > 0 && before >= high) state[i] = "top-p";
    else if (topP < 1 && i > 0 && before >= low) state[i] = "open";
    before += weight;
  });
  return spread(weights, state, rest, total, topP < 1 ? [low, high] : null, left);
}

/**
 * The unknown tokens' weight that min-p and top-k leave.
 * @param {Range} all
 * @param {number[]} weights
 * @param {number} others
 * @param {number} minP
 * @param {number} topK
 * @returns {Range}
 */
function restLeft(all, weights, others, minP, topK) {
  const last = weights[weights.length - 1];
  if (last < minP || (topK > 0 && topK <= weights.length)) return [0, 0];
  if (topK === 0 && minP === 0) return all;
  const more = topK === 0 ? others : topK - weights.length;
  const low = minP > 0 ? 0 : all[0] * Math.min(1, more / others);
  return [low, Math.min(all[1], more * last)];
}

/**
 * Probabilities of what is left.
 * @param {number[]} weights
 * @param {(Cut | "open")[]} state
 * @param {Range} rest
 * @param {Range} total
 * @param {Range | null} reach the weight that top-p asks for
 * @param {number} left weight of known tokens before top-p
 * @returns {Bounds}
 */
function spread(weights, state, rest, total, reach, left) {
  const sure = sum(weights.filter((_, i) => state[i] === null));
  const open = sum(weights.filter((_, i) => state[i] === null || state[i] === "open"));
  let [restLow, restHigh] = rest;
  let [low, high] = [sure + restLow, open + restHigh];
  if (reach) {
    if (left >= reach[1]) restHigh = 0;
    restLow = left < reach[0] ? reach[0] - left : 0;
    low = Math.max(sure, Math.min(reach[0], open + restHigh));
    high = open + restHigh;
  }
  const processed = weights.map((weight, i) => {
    if (state[i] === "open") return /** @type {Range} */ ([0, share(weight / low)]);
    if (state[i] !== null) return /** @type {Range} */ ([0, 0]);
    return /** @type {Range} */ ([share(weight / high), share(weight / low)]);
  });
  return {
    processed,
    cuts: state,
    kept: [share(low / total[1]), share(high / total[0])],
    rest: [share(restLow / high), share(restHigh / low)],
  };
}

/**
 * Why filters cut a token whose processed probability is 0.
 * @param {number} ratio its raw probability over the likeliest token's
 * @param {number} rank 1 for the likeliest
 * @param {Filters} filters
 * @returns {Cut}
 */
export function whyCut(ratio, rank, filters) {
  if (ratio ** (1 / filters.temperature) < filters.min_p) return "min-p";
  if (filters.top_k > 0 && rank > filters.top_k) return "top-k";
  return filters.top_p < 1 ? "top-p" : null;
}
