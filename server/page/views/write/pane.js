/** One reply: its tokens, what is known of the token under the pointer, and how it went. */
import { count, exact, fixed, percent, probabilityOf, seconds, visible } from "../../lib/format.js";
import { html, useCallback, useMemo, useSignal } from "../../lib/html.js";
import { info } from "../../lib/server.js";
import { Copy } from "../../parts/controls.js";
import { classesBy } from "../../parts/tints.js";
import { TokenText } from "../../parts/token_text.js";
import * as snippet from "../../lib/snippet.js";
import { textOf } from "../../lib/tokens.js";
import { sharedRequest } from "./body.js";
import { commonTokens } from "./branch.js";
import { replyKeys } from "./keys.js";
import { Reading } from "./reading.js";
import {
  active, messages, mode, panes, prompt, reading, select, selected, sets, tint,
} from "./state.js";

/** @param {{index: number}} props */
export function Pane({ index }) {
  const branch = panes.value[index];
  const two = panes.value.length === 2;
  const name = two ? "AB"[index] : "";
  const here = active.value === index;
  return html`<section class=${`pane${two && here ? " active" : ""}`} aria-label=${`Reply ${name}`}
    onFocusIn=${() => (active.value = index)}>
    ${branch ? html`<${Reply} branch=${branch} name=${name} other=${panes.value[1 - index]} />`
      : html`<${Nothing} name=${name} />`}
  </section>`;
}

/** @param {{name: string}} props */
function Nothing({ name }) {
  return html`<div class="readout"><span class="name">${name}</span></div>
    <div class="empty">
      <p>Run the prompt. Every token of the reply is tinted by what the model thought of it; select
        one to see what else it could have been.</p>
      <dl class="keys">
        <dt><kbd>Ctrl</kbd> <kbd>Enter</kbd></dt><dd>run</dd>
        <dt><kbd>←</kbd> <kbd>→</kbd></dt><dd>walk along the tokens</dd>
        <dt><kbd>Enter</kbd></dt><dd>to the alternatives; there, go on from one</dd>
        <dt><kbd>[</kbd> <kbd>]</kbd></dt><dd>walk along the branches</dd>
        <dt><kbd>Esc</kbd></dt><dd>back</dd>
      </dl>
    </div>
    <div class="stats"></div>`;
}

/** @param {{branch: import("./branch.js").Branch, name: string, other: any}} props */
function Reply({ branch, name, other }) {
  const hover = useSignal(-1);
  branch.version.value;
  const chosen = selected.value?.branch === branch ? selected.value.index : -1;
  const vocabSize = info.value?.vocab_size ?? branch.tokens.length;
  const kind = tint.value;
  const shared = other && other !== branch ? commonTokens(branch, other) : -1;
  const classOf = useMemo(() => {
    const classes = classesBy(kind, vocabSize);
    return (/** @type {any} */ token, /** @type {number} */ i) =>
      classes(token) + (i === shared ? " parts" : "") + (i < shared ? " shared" : "");
  }, [kind, vocabSize, shared]);
  const point = useCallback((/** @type {number} */ i) => (hover.value = i), []);
  const running = branch.status.value === "running";
  return html`
    <${Readout} branch=${branch} name=${name} index=${hover.value >= 0 ? hover.value : chosen} />
    ${mode.value === "chat" && reading.value === "text"
      ? html`<${Reading} branch=${branch} name=${name} />`
      : html`<${TokenText} tokens=${branch.tokens} length=${branch.tokens.length} classOf=${classOf}
      selected=${chosen} label=${`Tokens of reply ${name}`} follow=${running && chosen < 0}
      onSelect=${(i) => select(branch, i)} onHover=${point}
      onKeyDown=${(event) => replyKeys(event, branch)} />`}
    <${Stats} branch=${branch} />`;
}

/** The line above a reply. @param {{branch: any, name: string, index: number}} props */
function Readout({ branch, name, index }) {
  branch.version.value;
  const token = branch.tokens[index];
  return html`<div class="readout">
    ${name && html`<span class="name">${name}</span>`}
    ${token ? html`<code class="chip">${visible(token.text)}</code>
      <span title="logprob" class="logprob">${exact(token.logprob)}</span>
      <span>${token.logprob === null ? "" : percent(probabilityOf(token.logprob))}</span>
      <span>rank ${token.rank ?? "–"}</span>
      ${token.kept !== null && html`<span>kept ${percent(Math.exp(token.kept))}</span>`}
      ${token.origin && html`<span>${token.origin}</span>`}`
    : html`<span class="muted">${branch.note || "point at a token, or select one"}</span>`}
  </div>`;
}

/** @param {{branch: import("./branch.js").Branch}} props */
function Stats({ branch }) {
  branch.version.value;
  const { first, rate } = branch.speed();
  const usage = branch.usage;
  const bits = branch.tokens.length ? -branch.logprob() / Math.LN2 / branch.tokens.length : null;
  const asked = () => sharedRequest(branch, {
    prompt: branch.parent || mode.value === "chat" ? branch.prefixIds(branch.given) : prompt.value,
    messages: mode.value === "chat" ? messages.value : undefined,
  });
  const state = branch.error || { running: "…", stopped: "stopped" }[branch.status.value]
    || branch.finish;
  return html`<div class="stats">
    <span class=${branch.error ? "failure" : "state"} role="status">${state}</span>
    <span>prompt <b>${usage ? count(usage.prompt_tokens) : "–"}</b></span>
    <span>tokens <b>${count(branch.tokens.length)}</b></span>
    <span>bits/token <b>${fixed(bits)}</b></span>
    <span>tokens/s <b>${count(rate)}</b></span>
    <span title="time to first token">first <b class="first">${seconds(first)}</b></span>
    <span>seed <b>${branch.seed}</b></span>
    <${Origins} branch=${branch} />
    <span class="copies">
      <${Copy} label="text" title="Copy the text" text=${() => textOf(branch.tokens)} />
      <${Copy} label="curl" title="Copy as a curl command"
        text=${() => snippet.curl(asked().path, asked().body)} />
      <${Copy} label="Python" title="Copy as a Python program"
        text=${() => snippet.python(asked().path, asked().body)} />
    </span>
  </div>`;
}

/** @param {{branch: import("./branch.js").Branch}} props */
function Origins({ branch }) {
  branch.version.value;
  const origins = [...branch.origins()].filter(([origin]) => origin !== "drawn");
  return html`${origins.map(([origin, total]) => html`<span class="origin">
    <u class=${`o-${origin}`}>${origin}</u> <b>${count(total)}</b></span>`)}`;
}
