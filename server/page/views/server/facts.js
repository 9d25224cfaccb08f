/** What the server is, and how it was started. */
import { count } from "../../lib/format.js";
import { html } from "../../lib/html.js";
import { info } from "../../lib/server.js";
import { Fact } from "../../parts/controls.js";

export function Facts() {
  const about = info.value;
  if (!about) return null;
  const blocks = `${count(about.num_blocks)} × ${about.block_size} tokens`;
  const most = about.max_logprobs < 0 ? "no cap" : about.max_logprobs;
  return html`<section class="panel about" aria-label="The server">
    <h2>The server</h2>
    <dl class="facts">
      <${Fact} label="model" value=${about.model} />
      <${Fact} label="version" value=${about.version} />
      <${Fact} label="folder or id" value=${about.root} title=${about.root} />
      <${Fact} label="device" value=${about.device} />
      <${Fact} label="dtype" value=${about.dtype} />
      <${Fact} label="sampler" value=${about.sampler} title=${about.sampler} />
      <${Fact} label="context" value=${`${count(about.max_model_len)} tokens`} />
      <${Fact} label="vocabulary" value=${count(about.vocab_size)} />
      <${Fact} label="rows" value=${count(about.max_num_seqs)} />
      <${Fact} label="KV cache" value=${blocks} />
      <${Fact} label="logprobs" value=${`${about.logprobs_mode}, top ${most}`} />
    </dl>
    ${about.quantization ? html`<${ErrorStatement} error=${about.quantization} />` : null}
    <h2>Flags</h2>
    <ul class="flags">${about.flags.length ? about.flags.map((flag) => html`<li><code>${flag}</code></li>`)
      : html`<li class="muted">none was given</li>`}</ul>
  </section>`;
}

/**
 * How far a quantised model is from what it was made of.
 * @param {{error: {scheme: string, reference: string, mean_kl: number | null,
 *   max_logprob_gap: number | null, text: string}}} props
 */
function ErrorStatement({ error }) {
  const nats = (/** @type {number | null} */ x) => (x === null ? "no number" : `${+x.toPrecision(3)} nats`);
  return html`<h2 id="quantization">Error of quantization</h2>
    <dl class="facts" aria-labelledby="quantization">
      <${Fact} label="scheme" value=${error.scheme} title=${error.scheme} />
      <${Fact} label="mean KL" value=${nats(error.mean_kl)}
        title="KL(reference || served), mean over the text's positions" />
      <${Fact} label="largest gap" value=${nats(error.max_logprob_gap)}
        title="between two logprobs of one token, of all tokens at all positions" />
      <${Fact} label="reference" value=${error.reference} title=${error.reference} />
      <${Fact} label="text" value=${error.text} title=${error.text} />
    </dl>`;
}
