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
    <h2>Flags</h2>
    <ul class="flags">${about.flags.length ? about.flags.map((flag) => html`<li><code>${flag}</code></li>`)
      : html`<li class="muted">none was given</li>`}</ul>
  </section>`;
}
