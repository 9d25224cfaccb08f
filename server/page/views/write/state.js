/** What the Write view shows: the prompt, settings, and the tree of branches. */
import { batch, signal } from "../../lib/html.js";

/**
 * @typedef {object} Settings
 * @property {number} temperature
 * @property {number} top_k
 * @property {number} top_p
 * @property {number} min_p
 * @property {number} max_tokens
 * @property {string} seed empty for a new one each time
 * @property {string} stop one stop string a line
 * @property {"none" | "choice" | "regex" | "json" | "grammar"} grammar
 * @property {string} grammarText
 */

/** @type {Settings} */
export const DEFAULTS = {
  temperature: 0.8, top_k: 0, top_p: 0.95, min_p: 0, max_tokens: 120, seed: "", stop: "",
  grammar: "none", grammarText: "",
};

/** What a greedy or otherwise quiet reader sees first. */
const PROMPT = "def fibonacci(n):\n";

export const mode = signal(/** @type {"completion" | "chat"} */ ("completion"));
export const prompt = signal(PROMPT);
export const messages = signal([{ role: "user", content: "What is the capital of France?" }]);
/** Settings of each pane: one, or two to compare. */
export const sets = signal([{ ...DEFAULTS }]);
/** Whose settings are being edited. */
export const editing = signal(0);

/** All branches, in the order they were begun. */
export const branches = signal(/** @type {import("./branch.js").Branch[]} */ ([]));
/** The branch that each pane shows. */
export const panes = signal(/** @type {(import("./branch.js").Branch | null)[]} */ ([null]));
/** The pane that keys act on. */
export const active = signal(0);
/** The selected position: a pane's branch and the token's index; null for none. */
export const selected = signal(
  /** @type {{branch: import("./branch.js").Branch, index: number} | null} */ (null),
);
export const TINTS = /** @type {const} */ (["probability", "rank", "entropy", "kept", "none"]);
export const tint = signal(/** @type {(typeof TINTS)[number]} */ ("probability"));
/** Whether replies of a chat are shown token by token or as the text they make. */
export const reading = signal(/** @type {"tokens" | "text"} */ ("tokens"));
/** A message about the last thing that failed. */
export const failure = signal("");

/**
 * @param {number} pane
 * @param {Partial<Settings>} changes
 */
export function change(pane, changes) {
  sets.value = sets.value.map((each, i) => (i === pane ? { ...each, ...changes } : each));
}

/** Show a second pane with settings of its own, or only one. */
export function toggleCompare() {
  batch(() => {
    if (sets.value.length === 1) {
      sets.value = [sets.value[0], { ...sets.value[0] }];
      panes.value = [panes.value[0], null];
      editing.value = 1;
    } else {
      sets.value = [sets.value[0]];
      panes.value = [panes.value[0]];
      editing.value = active.value = 0;
    }
  });
}

/**
 * Show a branch in a pane.
 * @param {import("./branch.js").Branch} branch
 * @param {number} [pane]
 */
export function show(branch, pane = active.value) {
  panes.value = panes.value.map((each, i) => (i === pane ? branch : each));
}

/**
 * @param {import("./branch.js").Branch | null} branch
 * @param {number} [index]
 */
export function select(branch, index = 0) {
  if (!branch || !branch.tokens.length) {
    selected.value = null;
    return;
  }
  const last = branch.tokens.length - 1;
  selected.value = { branch, index: Math.max(0, Math.min(last, index)) };
}
