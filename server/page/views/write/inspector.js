/** The selected position: what is known of its token, sliders to try settings, alternatives. */
import { entropy } from "../../lib/distribution.js";
import { exact, fixed, percent, probabilityOf, visible } from "../../lib/format.js";
import { html, useEffect } from "../../lib/html.js";
import { info } from "../../lib/server.js";
import { Fact } from "../../parts/controls.js";
import { topProbabilities } from "../../parts/tints.js";
import { Alternatives } from "./alternatives.js";
import { filters, tried, trouble, watchPosition } from "./position.js";
import { FilterSliders } from "./settings.js";
import { change, panes, select, selected } from "./state.js";

export function Inspector() {
  useEffect(watchPosition, []);
  const at = selected.value;
  if (!at) {
    return html`<section class="panel inspector none" aria-label="Selected token">
      <h2>Token</h2><p class="muted">Select a token of a reply: what else it could have been, and what
        temperature and filters make of that, appears here.</p></section>`;
  }
  const { branch, index } = at;
  branch.version.value;
  const token = branch.tokens[index];
  const step = (/** @type {number} */ by) => () => select(branch, index + by);
  return html`<section class="panel inspector" aria-label="Selected token">
    <h2>Token ${index + 1} <span class="muted">of ${branch.tokens.length}</span>
      <span class="steps">
        <button type="button" class="quiet" aria-label="Previous token" onClick=${step(-1)}
          disabled=${index === 0}>←</button>
        <button type="button" class="quiet" aria-label="Next token" onClick=${step(1)}
          disabled=${index + 1 === branch.tokens.length}>→</button>
        <button type="button" class="quiet" aria-label="Close" onClick=${() => select(null)}
          >×</button></span></h2>
    <p class="hidden" role="status">${spoken(token, index)}</p>
    <${Facts} token=${token} branch=${branch} />
    <${Trial} branch=${branch} />
    <${Alternatives} branch=${branch} index=${index} />
  </section>`;
}

/** @param {any} token @param {number} index */
function spoken(token, index) {
  const p = token.logprob === null ? "" : percent(probabilityOf(token.logprob));
  return `Token ${index + 1}: ${visible(token.text)}, ${p}, rank ${token.rank}`;
}

/** @param {{token: any, branch: any}} props */
function Facts({ token, branch }) {
  const [low, high] = entropy(topProbabilities(token), info.value?.vocab_size ?? 0);
  const bits = high - low < 0.005 ? fixed(low) : `${fixed(low)}–${fixed(high)}`;
  const values = branch.constrained ? "after settings" : "the model's";
  return html`<dl class="facts">
    <${Fact} label="text" value=${html`<code class="chip">${visible(token.text)}</code>`} />
    <${Fact} label="id" value=${token.id} />
    <${Fact} label="logprob" title=${values} value=${html`<span class="exact"
      >${exact(token.logprob)}</span>`} />
    <${Fact} label="probability" title=${values}
      value=${token.logprob === null ? "–" : percent(probabilityOf(token.logprob))} />
    <${Fact} label="rank" value=${token.rank ?? "–"} />
    <${Fact} label="entropy" value=${`${bits} bits`}
      title="of the position; a range where it depends on tokens beyond the likeliest" />
    ${token.kept !== null && html`<${Fact} label="kept" title=${`log ${exact(token.kept)}`}
      value=${percent(Math.exp(token.kept))} />`}
    <${Fact} label="origin" value=${token.picked ? "chosen by you" : token.origin ?? "drawn"} />
  </dl>`;
}

/** Sliders that redraw the position. @param {{branch: import("./branch.js").Branch}} props */
function Trial({ branch }) {
  if (branch.constrained) {
    return html`<p class="muted note">Values after settings are those it was drawn with: a grammar's
      state is part of a reply and cannot be asked for again.</p>`;
  }
  const now = /** @type {any} */ (filters.value);
  const pane = Math.max(0, panes.value.indexOf(branch));
  return html`<div class="trial" role="group" aria-label="Settings to try at this token">
    <${FilterSliders} value=${now} onChange=${(changes) => (tried.value = { ...now, ...changes })} />
    <p class="row"><button type="button" class="quiet" disabled=${!tried.value}
        onClick=${() => (tried.value = null)}>as drawn</button>
      <button type="button" class="quiet" disabled=${!tried.value}
        onClick=${() => change(pane, now)}>use in settings</button>
      <span class="failure" role="alert">${trouble.value}</span></p>
    ${now.temperature === 0 && html`<p class="muted note">Temperature 0 takes the likeliest token;
      the values are those at 1, without filters.</p>`}
  </div>`;
}
