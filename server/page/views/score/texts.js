/** Texts: how surprising each token is, how many bits a byte takes, and two texts compared. */
import { ApiError, json } from "../../lib/api.js";
import { count, exact, fixed, percent, probabilityOf, visible } from "../../lib/format.js";
import { html, signal, useMemo, useSignal } from "../../lib/html.js";
import { info, topTokens } from "../../lib/server.js";
import * as snippet from "../../lib/snippet.js";
import { TextDecoding, tokensOf } from "../../lib/tokens.js";
import { Choice, Copy } from "../../parts/controls.js";
import { classesBy } from "../../parts/tints.js";
import { TokenText } from "../../parts/token_text.js";
import { texts, tint } from "./state.js";

/**
 * @typedef {object} Measured
 * @property {import("../../lib/tokens.js").Token[]} tokens
 * @property {number} bits of all tokens that have a value
 * @property {number} bytes of these tokens
 * @property {number} numValues
 */

const measured = signal(/** @type {(Measured | null)[]} */ ([null, null]));
const failures = signal(["", ""]);
const running = signal(false);

const bodyOf = (/** @type {string} */ text) => ({
  model: info.value?.model, prompt: text, max_tokens: 0, echo: true, logprobs: topTokens(),
  logprobs_mode: "raw_logprobs",
});

/** @param {any} logprobs @returns {Measured} */
function measureOf(logprobs) {
  const tokens = tokensOf(logprobs, new TextDecoding());
  let [bits, bytes, numValues] = [0, 0, 0];
  tokens.forEach(({ logprob }, i) => {
    if (logprob === null) return;
    bits -= logprob / Math.LN2;
    bytes += logprobs.bytes[i].length;
    numValues += 1;
  });
  return { tokens, bits, bytes, numValues };
}

/** Ask for the values of both texts. */
export async function measure() {
  running.value = true;
  const found = await Promise.all(texts.value.map(async (text) => {
    if (!text) return { value: null, error: "" };
    try {
      const reply = await json("v1/completions", bodyOf(text));
      return { value: measureOf(reply.choices[0].logprobs), error: "" };
    } catch (error) {
      return { value: null, error: error instanceof ApiError ? error.message : String(error) };
    }
  }));
  measured.value = found.map(({ value }) => value);
  failures.value = found.map(({ error }) => error);
  running.value = false;
}

export function Texts() {
  const [a, b] = measured.value;
  return html`<div class="texts">
    ${["A", "B"].map((name, i) => html`<section class="panel" aria-label=${`Text ${name}`}>
      <label for=${`text-${name}`}><b>${name}</b> <span class="muted">${
        i ? "another text, to compare; may be empty" : "a text"}</span></label>
      <textarea id=${`text-${name}`} class="mono" spellcheck=${false} value=${texts.value[i]}
        onInput=${(event) => (texts.value = texts.value.map((old, k) =>
          (k === i ? event.target.value : old)))}></textarea></section>`)}
    <div class="toolbar wide"><button type="button" class="main" disabled=${running.value}
        onClick=${measure} title="Ctrl+Enter">Measure</button>
      <${Choice} label="Tint tokens by" options=${["probability", "rank", "entropy"]}
        names=${["surprise", "rank", "entropy"]} value=${tint.value}
        onChange=${(value) => (tint.value = value)} />
      ${a && b && html`<${Comparison} a=${a} b=${b} />`}
    </div>
    ${["A", "B"].map((name, i) => html`<${Measure} name=${name} found=${measured.value[i]}
      failure=${failures.value[i]} text=${texts.value[i]} />`)}
  </div>`;
}

/** @param {{a: Measured, b: Measured}} props */
function Comparison({ a, b }) {
  const perByte = [a, b].map(({ bits, bytes }) => bits / bytes);
  const less = perByte[0] === perByte[1] ? null : perByte[0] < perByte[1] ? "A" : "B";
  const likelier = a.bits < b.bits ? "A" : "B";
  const nats = fixed(Math.abs(a.bits - b.bits) * Math.LN2);
  return html`<span class="verdict">${less
    ? html`<b>${less}</b> is less surprising, by ${fixed(Math.abs(perByte[0] - perByte[1]), 3)} bits
      a byte; as a whole, ${likelier} is likelier by ${nats} nats`
    : "both are as surprising"}</span>`;
}

/** @param {{name: string, found: Measured | null, failure: string, text: string}} props */
function Measure({ name, found, failure, text }) {
  const hover = useSignal(-1);
  const chosen = useSignal(-1);
  const vocabSize = info.value?.vocab_size ?? 0;
  const kind = tint.value;
  const classOf = useMemo(() => classesBy(kind, vocabSize), [kind, vocabSize]);
  if (!found) {
    return html`<section class="pane none" aria-label=${`Tokens of text ${name}`}>
      <p class="failure" role="alert">${failure}</p></section>`;
  }
  const token = found.tokens[hover.value >= 0 ? hover.value : chosen.value];
  const move = (/** @type {KeyboardEvent} */ event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    chosen.value = Math.max(0, Math.min(found.tokens.length - 1, chosen.value + by));
  };
  return html`<section class="pane" aria-label=${`Tokens of text ${name}`}>
    <div class="readout"><span class="name">${name}</span>${token
      ? html`<code class="chip">${visible(token.text)}</code>
        <span class="logprob">${exact(token.logprob)}</span>
        <span>${token.logprob === null ? "nothing precedes it" : `${percent(probabilityOf(token.logprob))}, ${
          fixed(-token.logprob / Math.LN2)} bits, rank ${token.rank}`}</span>
        <span class="muted">likeliest</span> ${token.top.slice(0, 3).map((each) => html`<code
          class="chip">${visible(each.text)}</code>`)}`
      : html`<span class="muted">point at a token</span>`}</div>
    <${TokenText} tokens=${found.tokens} length=${found.tokens.length} classOf=${classOf}
      selected=${chosen.value} label=${`Tokens of text ${name}`} onKeyDown=${move}
      onSelect=${(i) => (chosen.value = i)} onHover=${(i) => (hover.value = i)} />
    <div class="stats" title="The first token, which nothing precedes, has no value and is not counted.">
      <span><b class="bits-per-byte">${fixed(found.bits / found.bytes, 4)}</b> bits/byte</span>
      <span><b>${fixed(found.bits, 2)}</b> bits</span>
      <span><b>${count(found.tokens.length)}</b> tokens</span>
      <span><b>${count(found.bytes)}</b> bytes</span>
      <span title="of a token"><b>${fixed(2 ** (found.bits / found.numValues), 2)}</b> perplexity</span>
      <span class="copies"><${Copy} label="curl" title="Copy as a curl command"
        text=${() => snippet.curl("v1/completions", bodyOf(text))} />
        <${Copy} label="Python" title="Copy as a Python program"
        text=${() => snippet.python("v1/completions", bodyOf(text))} /></span></div>
  </section>`;
}
