/** The tree of branches: each with what it went on from, to be shown in either pane. */
import { fixed, visible } from "../../lib/format.js";
import { html } from "../../lib/html.js";
import { branches, panes, select, selected, show } from "./state.js";

/**
 * Branches in the order of a walk through the tree, with their depths.
 * @param {import("./branch.js").Branch[]} all
 */
function walk(all) {
  /** @type {{branch: import("./branch.js").Branch, depth: number}[]} */
  const found = [];
  const visit = (/** @type {any} */ parent, /** @type {number} */ depth) => {
    for (const branch of all.filter((each) => each.parent === parent)) {
      found.push({ branch, depth });
      visit(branch, depth + 1);
    }
  };
  visit(null, 0);
  return found;
}

export function Tree() {
  const all = branches.value;
  if (!all.length) return null;
  return html`<section class="panel tree" aria-label="Branches">
    <h2>Branches <span class="muted">${all.length}</span>
      <button type="button" class="quiet end" onClick=${clear}>Clear</button></h2>
    <ul>${walk(all).map(({ branch, depth }) => html`<${Row} key=${branch.number}
      branch=${branch} depth=${depth} />`)}</ul>
  </section>`;
}

function clear() {
  for (const branch of branches.value) branch.abort.abort();
  branches.value = [];
  panes.value = panes.value.map(() => null);
  selected.value = null;
}

/** @param {{branch: import("./branch.js").Branch, depth: number}} props */
function Row({ branch, depth }) {
  branch.version.value;
  const at = panes.value.indexOf(branch);
  const { temperature, top_p: topP } = branch.settings;
  const own = branch.tokens.slice(branch.at, branch.at + 8);
  const text = visible(own.map((token) => token.text).join("").trimStart());
  const bits = branch.tokens.length ? -branch.logprob() / Math.LN2 / branch.tokens.length : null;
  const open = (/** @type {number} */ pane) => {
    show(branch, pane);
    if (branch.parent) select(branch, branch.at);
  };
  const two = panes.value.length === 2;
  return html`<li class=${`depth-${Math.min(depth, 6)}${at >= 0 ? " shown" : ""}`}>
    <button type="button" class="open" onClick=${() => open(two ? Math.max(at, 0) : 0)}
      aria-current=${at >= 0 ? "true" : undefined}
      aria-label=${`Branch ${branch.number}: ${text}`}>
      <span class="number">${branch.number}</span>
      <span class="at">${branch.parent ? `@${branch.at + 1}` : `T ${temperature} p ${topP}`}</span>
      <code>${text || "…"}</code>
      <span class="bits" title="bits a token">${fixed(bits)}</span>
    </button>
    ${two && ["A", "B"].map((name, pane) => html`<button type="button" class="quiet"
      aria-pressed=${panes.value[pane] === branch} aria-label=${`Show branch ${branch.number} in ${name}`}
      onClick=${() => open(pane)}>${name}</button>`)}
  </li>`;
}
