/** A branch of the tree: a reply, or what went on from a token that a person chose. */
import { signal } from "../../lib/html.js";
import { TextDecoding } from "../../lib/tokens.js";

let begun = 0;

/** @typedef {"running" | "done" | "stopped" | "failed"} Status */

export class Branch {
  /**
   * @param {object} given
   * @param {import("./state.js").Settings} given.settings as they were when it began
   * @param {number} given.seed
   * @param {Branch | null} [given.parent] the branch it went on from
   * @param {number} [given.at] the number of the parent's tokens it shares
   * @param {number[]} [given.promptIds] ids of the prompt; the reply has them
   * @param {{role: string, content: string}[]} [given.messages] the conversation that it answers
   */
  constructor({
    settings, seed, parent = null, at = 0, promptIds = [], messages = parent?.messages ?? [],
  }) {
    this.number = (begun += 1);
    this.settings = settings;
    this.seed = seed;
    this.parent = parent;
    this.at = at;
    this.promptIds = promptIds;
    this.messages = messages;
    /** @type {import("../../lib/tokens.js").Token[]} grows in place */
    this.tokens = parent ? parent.tokens.slice(0, at) : [];
    this.decoding = new TextDecoding();
    /** The mode of its logprobs: processed under a grammar, which no later request can repeat. */
    this.logprobsMode = "raw_logprobs";
    /** @type {any} */
    this.usage = null;
    this.finish = "";
    this.error = "";
    this.note = "";
    /** Milliseconds of the page's clock: when it was asked, its first and its last token. */
    this.times = { began: performance.now(), first: 0, last: 0 };
    this.numDrawn = 0;
    this.abort = new AbortController();
    /** Grows with each frame in which the branch changed: what shows the rest of it reads this too. */
    this.version = signal(0);
    this.status = signal(/** @type {Status} */ ("running"));
  }

  /** The number of tokens it began with: what it shares, and the one that a person chose. */
  get given() {
    return this.parent ? this.at + 1 : 0;
  }

  /** Ids of the prompt and of the tokens before a position: what the position was drawn after. */
  prefixIds(index) {
    return [...this.promptIds, ...this.tokens.slice(0, index).map((token) => token.id)];
  }

  /** Whether its tokens were drawn under a grammar. */
  get constrained() {
    return this.logprobsMode.startsWith("processed");
  }

  /** Seconds to the first token, and tokens a second after it. */
  speed() {
    const { began, first, last } = this.times;
    if (!first) return { first: null, rate: null };
    const rate = last > first ? ((this.numDrawn - 1) * 1e3) / (last - first) : null;
    return { first: (first - began) / 1e3, rate };
  }

  /** The sum of the tokens' logprobs, in nats. */
  logprob() {
    return this.tokens.reduce((total, token) => total + (token.logprob ?? 0), 0);
  }

  /** Tokens by origin; empty where the server reported none. */
  origins() {
    /** @type {Map<string, number>} */
    const counts = new Map();
    for (const { origin } of this.tokens) {
      if (origin) counts.set(origin, (counts.get(origin) ?? 0) + 1);
    }
    return counts;
  }
}

/**
 * The number of tokens that two branches share from the beginning.
 * @param {Branch} a
 * @param {Branch} b
 */
export function commonTokens(a, b) {
  const most = Math.min(a.tokens.length, b.tokens.length);
  let count = 0;
  while (count < most && a.tokens[count].id === b.tokens[count].id) count += 1;
  return count;
}
