/** The Write view's state in the address, and back. Replies are kept as ids, so that they return. */
import { batch, effect } from "../../lib/html.js";
import { packIds, unpackIds } from "../../lib/ids.js";
import { loadState, saveState } from "../../lib/route.js";
import { replay } from "./run.js";
import {
  DEFAULTS, TINTS, active, branches, messages, mode, panes, prompt, reading, selected, sets, tint,
} from "./state.js";

/** Settings that are not the defaults. @param {import("./state.js").Settings} settings */
const changed = (settings) =>
  Object.fromEntries(Object.entries(settings).filter(([name, value]) => value !== DEFAULTS[name]));

/** Settings of a state from an address, which anyone may have written. @param {any} given */
function settingsOf(given) {
  const known = Object.entries(DEFAULTS)
    .filter(([name, value]) => typeof given?.[name] === typeof value)
    .map(([name]) => [name, given[name]]);
  return { ...DEFAULTS, ...Object.fromEntries(known) };
}

function current() {
  const all = branches.value.filter((branch) => branch.tokens.length);
  const { branch, index } = selected.value ?? {};
  return {
    mode: mode.value,
    ...(mode.value === "chat" ? { messages: messages.value } : { prompt: prompt.value }),
    sets: sets.value.map(changed),
    tint: tint.value,
    reading: reading.value,
    branches: all.map((each) => ({
      ...(each.parent
        ? { parent: all.indexOf(each.parent), at: each.at }
        : { prompt: packIds(each.promptIds), messages: each.messages }),
      settings: changed(each.settings),
      seed: each.seed,
      ids: packIds(each.tokens.slice(each.at).map((token) => token.id)),
      ended: each.tokens[each.tokens.length - 1].special,
    })),
    panes: panes.value.map((each) => (each ? all.indexOf(each) : -1)),
    active: active.value,
    ...(branch ? { selected: [all.indexOf(branch), index] } : {}),
  };
}

/** Write the state into the address whenever it changes and nothing is being read. */
export function keepState() {
  return effect(() => {
    const running = branches.value.some((branch) => branch.status.value === "running");
    [mode, prompt, messages, sets, tint, reading, panes, active, selected].forEach(
      (each) => each.value,
    );
    if (!running) saveState("write", current);
  });
}

/** Take the state in the address, if there is one. */
export async function restoreState() {
  const state = await loadState("write");
  if (!state) return;
  batch(() => {
    mode.value = state.mode === "chat" ? "chat" : "completion";
    if (typeof state.prompt === "string") prompt.value = state.prompt;
    if (Array.isArray(state.messages)) messages.value = state.messages.map(messageOf);
    reading.value = state.reading === "text" ? "text" : "tokens";
    sets.value = (state.sets ?? [{}]).slice(0, 2).map(settingsOf);
    if (TINTS.includes(state.tint)) tint.value = state.tint;
    active.value = Math.min(state.active ?? 0, sets.value.length - 1);
  });
  await restoreBranches(state);
}

/** @param {any} message */
const messageOf = ({ role, content }) => ({ role: String(role), content: String(content) });

/** @param {any} state */
async function restoreBranches(state) {
  /** @type {import("./branch.js").Branch[]} */
  const found = [];
  for (const each of state.branches ?? []) {
    const parent = found[each.parent] ?? null;
    const branch = await replay({
      settings: settingsOf(each.settings),
      seed: each.seed,
      parent,
      at: parent ? each.at : 0,
      promptIds: parent ? parent.promptIds : unpackIds(each.prompt ?? ""),
      messages: parent ? parent.messages : (each.messages ?? []).map(messageOf),
    }, unpackIds(each.ids), parent !== null);
    const last = branch.tokens[branch.tokens.length - 1];
    if (last && each.ended) last.special = true;
    found.push(branch);
  }
  const [branch, index] = [found[state.selected?.[0]], state.selected?.[1]];
  batch(() => {
    branches.value = found;
    panes.value = sets.value.map((_, i) => found[state.panes?.[i]] ?? null);
    selected.value = branch?.tokens[index] ? { branch, index } : null;
  });
}
