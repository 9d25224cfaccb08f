/** A reply as a reader sees it: the conversation it ends, its thoughts folded, markdown shown. */
import { html } from "../../lib/html.js";
import { splitThoughts } from "../../lib/thoughts.js";
import { textOf } from "../../lib/tokens.js";
import { Markdown } from "../../parts/markdown.js";

/** @param {{branch: import("./branch.js").Branch, name: string}} props */
export function Reading({ branch, name }) {
  branch.version.value;
  const last = branch.tokens[branch.tokens.length - 1];
  return html`<div class="reading" role="group" tabindex="0" aria-label=${`Text of reply ${name}`}>
    ${branch.messages.map(({ role, content }, i) => content && html`<${Turn} key=${i} role=${role}
      text=${content} />`)}
    <${Turn} key="reply" role="assistant" text=${textOf(branch.tokens)} />
    ${last?.special && html`<p class="end muted">ended by <code>${last.text}</code></p>`}
  </div>`;
}

/** @param {{role: string, text: string}} props */
function Turn({ role, text }) {
  const { thoughts, answer } = role === "assistant" ? splitThoughts(text)
    : { thoughts: "", answer: text };
  return html`<section class=${`turn ${role}`} aria-label=${role}>
    <p class="role muted">${role}</p>
    ${thoughts && html`<details class="thoughts"><summary>Thoughts</summary>
      <${Markdown} text=${thoughts} /></details>`}
    <${Markdown} text=${answer} />
  </section>`;
}
