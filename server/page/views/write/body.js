/** Bodies of the requests that the Write view sends. */
import { info, topTokens } from "../../lib/server.js";

/** @param {import("./state.js").Settings} settings */
export function structured(settings) {
  const text = settings.grammarText;
  switch (settings.grammar) {
    case "choice":
      return { choice: text.split("\n").filter(Boolean) };
    case "regex":
      return { regex: text };
    case "json":
      return { json: JSON.parse(text) };
    case "grammar":
      return { grammar: text };
    default:
      return undefined;
  }
}

/** @param {import("./state.js").Settings} settings */
const filters = ({ temperature, top_k, top_p, min_p }) => ({ temperature, top_k, top_p, min_p });

/** What a request for a reply has besides its prompt. @param {import("./branch.js").Branch} branch */
function common(branch) {
  const { settings } = branch;
  const grammar = branch.parent ? undefined : structured(settings);
  const stop = settings.stop.split("\n").filter(Boolean);
  return {
    model: info.value?.model,
    max_tokens: Math.max(1, settings.max_tokens - branch.given),
    ...filters(settings),
    seed: branch.seed,
    ...(stop.length ? { stop } : {}),
    ...(grammar ? { structured_outputs: grammar } : {}),
  };
}

/**
 * The request for a branch's tokens, streamed.
 * @param {import("./branch.js").Branch} branch
 * @param {string | number[]} prompt
 */
export function completionBody(branch, prompt) {
  const body = common(branch);
  return {
    ...body,
    prompt,
    logprobs: topTokens(),
    logprobs_mode: body.structured_outputs ? "processed_logprobs" : "raw_logprobs",
    kept_logprob: true,
    return_token_ids: true,
    return_token_origin: true,
    stream: true,
    stream_options: { include_usage: true },
  };
}

/**
 * The same reply as a person would ask for it.
 * @param {import("./branch.js").Branch} branch
 * @param {{prompt?: string | number[], messages?: object[]}} asked
 */
export function sharedRequest(branch, { prompt, messages }) {
  const body = common(branch);
  if (messages && !branch.parent) {
    return {
      path: "v1/chat/completions",
      body: { ...body, messages, logprobs: true, top_logprobs: topTokens() },
    };
  }
  return { path: "v1/completions", body: { ...body, prompt, logprobs: topTokens() } };
}

/**
 * The request for exact values of one position: nothing is generated.
 * @param {number[]} prefix
 * @param {number[]} ids whose values are wanted
 * @param {import("../../lib/distribution.js").Filters} wanted
 */
export function positionBody(prefix, ids, wanted) {
  return {
    model: info.value?.model,
    prompt: prefix,
    max_tokens: 0,
    logprobs_mode: "processed_logprobs",
    logprob_token_ids: ids,
    kept_logprob: true,
    ...wanted,
  };
}

/**
 * The request for the model's own top tokens at a position, one of which is drawn and thrown away.
 * @param {number[]} prefix
 * @param {number[]} ids
 */
export function rawBody(prefix, ids) {
  return {
    model: info.value?.model,
    prompt: prefix,
    max_tokens: 1,
    temperature: 0,
    logprobs: topTokens(),
    logprobs_mode: "raw_logprobs",
    logprob_token_ids: ids,
  };
}

/**
 * The request for the values of tokens that are there already.
 * @param {number[]} ids
 * @param {number} start the first position whose values are wanted
 */
export function replayBody(ids, start) {
  return {
    model: info.value?.model,
    prompt: ids,
    max_tokens: 0,
    echo: true,
    logprobs: topTokens(),
    logprobs_mode: "raw_logprobs",
    prompt_logprob_start: Math.max(1, start),
  };
}
