/** How a token is tinted: a step of ten, from nothing to see to something to look at. */
import { entropy } from "../lib/distribution.js";
import { probabilityOf, tenth } from "../lib/format.js";
import { likeliest } from "../lib/tokens.js";

const RANKS = [1, 2, 3, 5, 9, 17, 33, 65, 257, 1025];
/** Bits of entropy at which the scale ends. */
const MOST_BITS = 8;

/** @param {import("../lib/tokens.js").Token} token */
export const topProbabilities = (token) =>
  likeliest(token).map((each) => probabilityOf(each.logprob)).sort((a, b) => b - a);

/** @type {Record<string, (token: import("../lib/tokens.js").Token, vocabSize: number) => number>} */
const STEPS = {
  probability: (token) => (token.logprob === null ? 0 : tenth(1 - probabilityOf(token.logprob))),
  rank: (token) => RANKS.findLastIndex((rank) => (token.rank ?? 1) >= rank),
  entropy: (token, vocabSize) => {
    if (!token.top.length) return 0;
    const [low, high] = entropy(topProbabilities(token), vocabSize);
    return tenth((low + high) / 2 / MOST_BITS);
  },
  kept: (token) => (token.kept === null ? 0 : tenth(1 - Math.exp(token.kept))),
  none: () => 0,
};

/**
 * The classes of a token.
 * @param {string} tint
 * @param {number} vocabSize
 */
export function classesBy(tint, vocabSize) {
  const stepOf = STEPS[tint];
  return (/** @type {import("../lib/tokens.js").Token} */ token) => {
    const origin = token.origin && token.origin !== "drawn" ? ` o-${token.origin}` : "";
    return `t${stepOf(token, vocabSize)}${origin}${token.picked ? " picked" : ""}`;
  };
}

/** What the ends of each scale mean. */
export const ENDS = {
  probability: ["100%", "0%"],
  rank: ["1st", ">1000th"],
  entropy: ["0 bits", "≥8 bits"],
  kept: ["all kept", "all cut"],
  none: ["", ""],
};
