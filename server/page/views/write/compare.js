/** Two replies side by side in numbers: where they part, and how likely each found its own. */
import { fixed, percent, probabilityOf, visible } from "../../lib/format.js";
import { html } from "../../lib/html.js";
import { commonTokens } from "./branch.js";
import { panes } from "./state.js";

export function Comparison() {
  const [a, b] = panes.value;
  if (!a || !b || a === b) return null;
  a.version.value;
  b.version.value;
  const shared = commonTokens(a, b);
  const next = (/** @type {any} */ branch) => {
    const token = branch.tokens[shared];
    if (!token) return "the end";
    return html`<code class="chip">${visible(token.text)}</code>${" "}${
      token.logprob === null ? "" : percent(probabilityOf(token.logprob))}`;
  };
  return html`<p class="comparison" aria-label="Comparison">
    <span><b>${shared}</b> tokens shared</span>
    <span>then A ${next(a)}</span><span>B ${next(b)}</span>
    <span>Σ logprob A <b>${fixed(a.logprob(), 1)}</b> B <b>${fixed(b.logprob(), 1)}</b></span>
  </p>`;
}
