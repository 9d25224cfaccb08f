/** Decide: questions about a text, and a probability for every answer that they allow. */
import { ApiError, json } from "../../lib/api.js";
import { html, signal, useEffect } from "../../lib/html.js";
import { stateHook } from "../../lib/restored.js";
import { info } from "../../lib/server.js";
import * as snippet from "../../lib/snippet.js";
import { Choice, Copy, useId } from "../../parts/controls.js";
import { Answers } from "./answers.js";
import { Questions } from "./questions.js";
import { LABELS, bodyOf, input, keepState, labels, orders, prior, restoreState } from "./state.js";

const PATH = "v1/decisions";
const decided = signal(/** @type {import("./answers.js").Decided | null} */ (null));
const running = signal(false);
const failure = signal("");

async function decide() {
  failure.value = "";
  running.value = true;
  const body = bodyOf(info.value?.model);
  const began = performance.now();
  try {
    const reply = await json(PATH, body);
    decided.value = { body, reply, seconds: (performance.now() - began) / 1e3 };
  } catch (error) {
    failure.value = error instanceof ApiError ? error.message : String(error);
  }
  running.value = false;
}

const useAddress = stateHook(async () => {
  if (await restoreState()) await decide();
}, keepState);

/** @param {KeyboardEvent} event */
function keys(event) {
  if ((event.ctrlKey || event.metaKey) && event.key === "Enter") {
    event.preventDefault();
    decide();
  }
}

export default function Decide() {
  const id = useId();
  useAddress();
  useEffect(() => {
    document.addEventListener("keydown", keys);
    return () => document.removeEventListener("keydown", keys);
  }, []);
  const setOrders = (/** @type {any} */ event) => {
    orders.value = Math.min(64, Math.max(1, Math.round(event.target.valueAsNumber) || 1));
  };
  return html`<div class="deciding">
    <section class="panel asked" aria-label="What to decide">
      <label class="head" for=${id}>Text</label>
      <textarea id=${id} class="state" rows="5" value=${input.value}
        onInput=${(event) => (input.value = event.target.value)}></textarea>
      <span class="head">Questions</span>
      <${Questions} />
      <p class="row"><${Choice} label="What answers are read by" options=${LABELS}
          value=${labels.value} onChange=${(/** @type {any} */ value) => (labels.value = value)} />
        <label>orders <input type="number" min="1" max="64" value=${orders.value}
          onChange=${setOrders} /></label>
        <label><input type="checkbox" checked=${prior.value}
          onChange=${(event) => (prior.value = event.target.checked)} /> without the prior</label></p>
      <p class="row"><button type="button" class="main" disabled=${running.value} onClick=${decide}
          title="Ctrl+Enter">Decide</button>
        <${Copy} label="curl" title="Copy as a curl command"
          text=${() => snippet.curl(PATH, bodyOf(info.value?.model))} />
        <${Copy} label="Python" title="Copy as a Python program"
          text=${() => snippet.python(PATH, bodyOf(info.value?.model))} />
        <span class="failure" role="alert">${failure.value}</span></p>
    </section>
    <section class="panel results" aria-label="Answers">
      ${decided.value ? html`<${Answers} found=${decided.value} />`
        : html`<p class="muted">How likely is each answer that a question allows? Nothing is
          generated: what is read is where the reply would begin.</p>`}
    </section>
  </div>`;
}
