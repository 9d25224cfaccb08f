/** What the server says of the selected position, under settings that sliders may change. */
import { json } from "../../lib/api.js";
import { computed, effect, signal } from "../../lib/html.js";
import { alternativesOf, likeliest } from "../../lib/tokens.js";
import { positionBody, rawBody } from "./body.js";
import { selected } from "./state.js";

/**
 * @typedef {object} Answer
 * @property {Map<number, number>} processed logprobs after settings, by id
 * @property {number | null} kept log of the mass that was left
 * @property {import("../../lib/tokens.js").Alternative[]} raw the model's own top tokens
 */

const PAUSE_MS = 40;
const MOST_ANSWERS = 300;

/** Settings to try at the selected position; null for those it was drawn with. */
export const tried = signal(/** @type {import("../../lib/distribution.js").Filters | null} */ (null));
/** The server's answer; null until it came. */
export const answer = signal(/** @type {Answer | null} */ (null));
export const trouble = signal("");

/** The settings whose values are shown. */
export const filters = computed(() => {
  const { branch } = selected.value ?? {};
  if (!branch) return null;
  const { temperature, top_k, top_p, min_p } = tried.value ?? branch.settings;
  return { temperature, top_k, top_p, min_p };
});

/** @type {Map<string, Answer>} the latest answers, so that walking back asks nothing */
const answers = new Map();

/** Ask whenever another position is selected or a slider moves. */
export function watchPosition() {
  let timer = /** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined);
  let abort = new AbortController();
  return effect(() => {
    const [at, wanted] = [selected.value, filters.value];
    clearTimeout(timer);
    abort.abort();
    abort = new AbortController();
    trouble.value = "";
    const key = at && `${at.branch.number} ${at.index} ${JSON.stringify(wanted)}`;
    answer.value = (key && answers.get(key)) || null;
    if (!at || !key || answer.value) return;
    const { signal: ended } = abort;
    timer = setTimeout(async () => {
      try {
        const found = at.branch.constrained
          ? await askRaw(at.branch, at.index, ended) : await ask(at.branch, at.index, wanted, ended);
        answers.set(key, found);
        if (answers.size > MOST_ANSWERS) answers.delete(answers.keys().next().value);
        if (!ended.aborted) answer.value = found;
      } catch (error) {
        if (!ended.aborted) trouble.value = error.message;
      }
    }, PAUSE_MS);
  });
}

/**
 * @param {import("./branch.js").Branch} branch
 * @param {number} index
 * @param {any} wanted
 * @param {AbortSignal} ended
 * @returns {Promise<Answer>}
 */
async function ask(branch, index, wanted, ended) {
  const { top } = branch.tokens[index];
  const ids = top.map((each) => each.id);
  const body = positionBody(branch.prefixIds(index), ids, wanted);
  const [choice] = (await json("v1/completions", body, ended)).choices;
  const values = choice.logprob_token_ids.logprobs[0];
  return {
    processed: new Map(ids.map((id, i) => [id, values[i]])),
    kept: choice.kept_logprobs[0],
    raw: top,
  };
}

/**
 * A position that was drawn under a grammar: what it left came with the reply, the model's own
 * values are asked for.
 * @param {import("./branch.js").Branch} branch
 * @param {number} index
 * @param {AbortSignal} ended
 * @returns {Promise<Answer>}
 */
async function askRaw(branch, index, ended) {
  const token = branch.tokens[index];
  const drawn = token.top.filter((each) => each.logprob > -9999);
  const ids = drawn.map((each) => each.id);
  const body = rawBody(branch.prefixIds(index), ids);
  const [choice] = (await json("v1/completions", body, ended)).choices;
  const values = choice.logprob_token_ids.logprobs[0];
  const { top_logprobs: named, top_token_ids: topIds } = choice.logprobs;
  const raw = drawn.map((each, i) => ({ ...each, logprob: values[i] }));
  const own = new Set(ids);
  raw.push(...alternativesOf(named[0], topIds[0]).filter((each) => !own.has(each.id)));
  return {
    processed: new Map(drawn.map((each) => [each.id, each.logprob])),
    kept: token.kept,
    raw: raw.sort((a, b) => b.logprob - a.logprob),
  };
}

/** The likeliest tokens that bounds can be computed from; none under a grammar. */
export const known = computed(() => {
  const { branch, index } = selected.value ?? {};
  return branch && !branch.constrained ? likeliest(branch.tokens[index]) : [];
});
