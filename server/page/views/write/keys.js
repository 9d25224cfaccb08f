/** Keys of the Write view. */
import { run } from "./run.js";
import { active, branches, panes, select, selected, show } from "./state.js";

/**
 * Keys in a reply: along its tokens.
 * @param {KeyboardEvent} event
 * @param {import("./branch.js").Branch} branch
 */
export function replyKeys(event, branch) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const at = selected.value?.branch === branch ? selected.value.index : -1;
  const places = {
    ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: branch.tokens.length - 1,
    PageDown: at + 20, PageUp: at - 20,
  };
  if (event.key in places) {
    select(branch, places[event.key]);
  } else if (event.key === "Enter" && at >= 0) {
    focusAlternative(0);
  } else if (event.key === "Escape") {
    select(null);
  } else return;
  event.preventDefault();
}

/** @param {number} index */
function focusAlternative(index) {
  const buttons = /** @type {NodeListOf<HTMLElement>} */ (
    document.querySelectorAll(".alternatives button.pick"));
  buttons[Math.max(0, Math.min(buttons.length - 1, index))]?.focus();
}

/** Keys in the list of alternatives: up and down, and back. @param {KeyboardEvent} event */
export function alternativeKeys(event) {
  const buttons = [...document.querySelectorAll(".alternatives button.pick")];
  const at = buttons.indexOf(/** @type {Element} */ (event.target));
  if (event.key === "ArrowDown") focusAlternative(at + 1);
  else if (event.key === "ArrowUp") focusAlternative(at - 1);
  else if (event.key === "Escape") focusReply();
  else return;
  event.preventDefault();
}

/** Put the focus on the reply that is active. */
export function focusReply() {
  const replies = /** @type {NodeListOf<HTMLElement>} */ (
    document.querySelectorAll(".pane .tokens"));
  (replies[active.value] ?? replies[0])?.focus();
}

/** Keys that hold everywhere in the view. @param {KeyboardEvent} event */
export function viewKeys(event) {
  if ((event.ctrlKey || event.metaKey) && event.key === "Enter") {
    event.preventDefault();
    run();
    return;
  }
  const typing = /** @type {HTMLElement} */ (event.target).closest("input, textarea, select");
  if (typing || (event.key !== "[" && event.key !== "]")) return;
  const shown = panes.value[active.value];
  const at = shown ? branches.value.indexOf(shown) : -1;
  const next = branches.value[at + (event.key === "]" ? 1 : -1)];
  if (!next) return;
  event.preventDefault();
  show(next);
  const { index } = selected.value ?? { index: -1 };
  select(index >= 0 ? next : null, index);
}
