/** Replies asked for, read, branched, and read again from an address. */
import { json } from "../../lib/api.js";
import { batch } from "../../lib/html.js";
import { events } from "../../lib/stream.js";
import { tokensOf } from "../../lib/tokens.js";
import { completionBody, replayBody } from "./body.js";
import { Branch } from "./branch.js";
import {
  active, branches, failure, messages, mode, panes, prompt, select, selected, sets, show,
} from "./state.js";

/** @param {import("./state.js").Settings} settings */
function seedOf({ seed }) {
  return seed.trim() === "" ? crypto.getRandomValues(new Uint32Array(1))[0] : Number(seed);
}

/** Ask for a reply in every pane: the prompt is one, the settings are each pane's. */
export async function run() {
  failure.value = "";
  stop();
  let asked;
  try {
    asked = mode.value === "chat" ? await rendered() : prompt.value;
  } catch (error) {
    failure.value = messageOf(error);
    return;
  }
  const answered = mode.value === "chat" ? messages.value : [];
  const begun = sets.value.map((settings) =>
    new Branch({ settings, seed: seedOf(settings), messages: answered }));
  batch(() => {
    branches.value = [...branches.value, ...begun];
    panes.value = begun;
    selected.value = null;
  });
  await Promise.all(begun.map((branch) => read(branch, asked)));
}

/** The conversation's ids, by the model's own template. */
async function rendered() {
  const last = messages.value[messages.value.length - 1];
  const goesOn = last?.role === "assistant";
  const reply = await json("tokenize", {
    messages: messages.value.filter((each, i) => each.content || i === 0),
    add_generation_prompt: !goesOn,
    continue_final_message: goesOn,
  });
  return /** @type {number[]} */ (reply.tokens);
}

/**
 * Go on from a token that a person chose.
 * @param {Branch} from
 * @param {number} index
 * @param {{id: number, text: string, logprob: number}} chosen
 */
export async function branchAt(from, index, chosen) {
  const pane = Math.max(0, panes.value.indexOf(from));
  const settings = sets.value[Math.min(pane, sets.value.length - 1)];
  const { promptIds, seed } = from;
  const branch = new Branch({ settings, seed, parent: from, at: index, promptIds });
  if (from.constrained || settings.grammar !== "none") {
    branch.note = "Goes on without the grammar, which begins with a reply's first token.";
  }
  const own = from.tokens[index];
  const place = own.top.findIndex((each) => each.id === chosen.id);
  for (const token of branch.tokens) branch.decoding.push(bytesOf(token.text));
  branch.tokens.push({
    ...own, id: chosen.id, text: chosen.text, logprob: chosen.logprob, picked: true, special: false,
    rank: chosen.id === own.id ? own.rank : place + 1, origin: null,
  });
  batch(() => {
    failure.value = "";
    branches.value = [...branches.value, branch];
    show(branch, pane);
    active.value = pane;
    select(branch, index);
  });
  await read(branch, branch.prefixIds(branch.given));
}

/** @param {string} text */
const bytesOf = (text) => Array.from(new TextEncoder().encode(text));

/**
 * Read a branch's stream; what has come since the last frame is shown in one.
 * @param {Branch} branch
 * @param {string | number[]} asked
 */
async function read(branch, asked) {
  const settle = (/** @type {string} */ status) => batch(() => {
    branch.status.value = status;
    branch.version.value += 1;
    branches.value = [...branches.value];
  });
  let frame = 0;
  const showSoon = () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      branch.version.value += 1;
    });
  };
  try {
    const body = completionBody(branch, asked);
    branch.logprobsMode = body.logprobs_mode;
    for await (const chunk of events("v1/completions", body, branch.abort.signal)) {
      take(branch, chunk);
      showSoon();
    }
    settle("done");
  } catch (error) {
    if (branch.abort.signal.aborted) {
      settle("stopped");
    } else {
      branch.error = messageOf(error);
      settle("failed");
    }
  } finally {
    cancelAnimationFrame(frame);
  }
}

/** @param {Branch} branch @param {any} chunk */
function take(branch, chunk) {
  if (chunk.usage) branch.usage = chunk.usage;
  if (chunk.prompt_token_ids) branch.promptIds = chunk.prompt_token_ids; // of a chat
  const choice = chunk.choices[0];
  if (!choice) return;
  if (choice.prompt_token_ids) branch.promptIds = choice.prompt_token_ids;
  if (choice.logprobs) {
    const { kept_logprobs: kept, token_origins: origins } = choice;
    const tokens = tokensOf(choice.logprobs, branch.decoding, { kept, origins });
    if (tokens.length) {
      branch.times.last = performance.now();
      branch.times.first ||= branch.times.last;
      branch.numDrawn += tokens.length;
      branch.tokens.push(...tokens);
    }
  }
  if (choice.finish_reason) {
    branch.finish = choice.finish_reason;
    const byString = typeof choice.stop_reason === "string";
    const last = branch.tokens[branch.tokens.length - 1];
    if (last && choice.finish_reason === "stop" && !byString) last.special = true;
  }
}

/** End what is being read. */
export function stop() {
  for (const branch of branches.value) branch.abort.abort();
}

/**
 * A branch whose tokens are known, from an address: its values are asked anew.
 * @param {ConstructorParameters<typeof Branch>[0]} given
 * @param {number[]} ids its own tokens, those after what it shares with its parent
 * @param {boolean} picked whether a person chose the first of them
 */
export async function replay(given, ids, picked) {
  const branch = new Branch(given);
  const start = branch.promptIds.length + branch.tokens.length;
  for (const token of branch.tokens) branch.decoding.push(bytesOf(token.text));
  try {
    const reply = await json("v1/completions", replayBody([...branch.prefixIds(branch.at), ...ids], start));
    const tokens = tokensOf(reply.choices[0].logprobs, branch.decoding, { from: start });
    if (tokens.length) tokens[0].picked = picked;
    branch.tokens.push(...tokens);
    branch.status.value = "done";
  } catch (error) {
    branch.error = messageOf(error);
    branch.status.value = "failed";
  }
  return branch;
}

/** @param {unknown} error */
const messageOf = (error) => (error instanceof Error ? error.message : String(error));
