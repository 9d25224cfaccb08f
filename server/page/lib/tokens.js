/** Tokens of a reply as the page keeps them, made of the API's parallel arrays. */
import { plainKey } from "./api.js";

/** @typedef {{id: number, text: string, logprob: number}} Alternative */
/**
 * @typedef {object} Token
 * @property {number} id
 * @property {string} text what it adds to the text; empty within a character of several tokens
 * @property {number | null} logprob
 * @property {number | null} rank
 * @property {Alternative[]} top the likeliest tokens, and then this one if it is not among them
 * @property {number | null} kept log of the mass that masks and filters left when it was drawn
 * @property {string | null} origin how it came: drawn, accepted, recovered or bonus
 * @property {boolean} picked whether a person chose it
 * @property {boolean} special whether it ended the reply and is no part of its text
 */

/** Turns the bytes of tokens into text, a character with the token that completes it. */
export class TextDecoding {
  constructor() {
    this.decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  }

  /** @param {number[]} bytes */
  push(bytes) {
    return this.decoder.decode(Uint8Array.from(bytes), { stream: true });
  }
}

/**
 * The tokens of a choice's logprobs.
 * @param {any} logprobs
 * @param {TextDecoding} decoding
 * @param {{kept?: number[], origins?: string[], from?: number}} [more] `from`: the first to take
 * @returns {Token[]}
 */
export function tokensOf(logprobs, decoding, { kept, origins, from = 0 } = {}) {
  const { token_ids: ids, token_logprobs: values, bytes } = logprobs;
  /** @type {Token[]} */
  const tokens = [];
  for (let i = from; i < ids.length; i += 1) {
    tokens.push({
      id: ids[i],
      text: decoding.push(bytes[i]),
      logprob: values[i],
      rank: logprobs.ranks[i],
      top: alternativesOf(logprobs.top_logprobs?.[i], logprobs.top_token_ids?.[i]),
      kept: kept?.[i] ?? null,
      origin: origins?.[i] ?? null,
      picked: false,
      special: false,
    });
  }
  return tokens;
}

/**
 * @param {Record<string, number> | null | undefined} named values by text, in the order of the ids
 * @param {number[] | null | undefined} ids
 * @returns {Alternative[]}
 */
export function alternativesOf(named, ids) {
  if (!named || !ids) return [];
  return Object.entries(named).map(([name, logprob], i) => ({
    id: ids[i], text: plainKey(name), logprob,
  }));
}

/**
 * The text of tokens, without those that only ended it.
 * @param {Token[]} tokens
 */
export const textOf = (tokens) => tokens.map((token) => (token.special ? "" : token.text)).join("");

/**
 * The likeliest tokens of a position, without the chosen one where it is not among them.
 * @param {Token} token
 */
export const likeliest = (token) =>
  ((token.rank ?? 0) > token.top.length ? token.top.slice(0, -1) : token.top);
