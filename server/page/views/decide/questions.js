/** The questions of the Decide view: a kind, what is asked, and the options. */
import { html } from "../../lib/html.js";
import { Choice, useId } from "../../parts/controls.js";
import { KINDS, questions } from "./state.js";

const HINTS = { predicate: "a claim", choice: "a question", score: "a question" };
const OPTIONS = { choice: "choices, one a line", score: "levels from the lowest, one a line" };

/** @param {number} index @param {Partial<import("./state.js").Asked>} change */
function edit(index, change) {
  questions.value = questions.value.map((each, i) => (i === index ? { ...each, ...change } : each));
}

export function Questions() {
  return html`${questions.value.map((question, i) =>
    html`<${Question} key=${i} question=${question} index=${i} />`)}
    <p class="row">${KINDS.map((kind) => html`<button type="button" class="quiet add"
      onClick=${() => (questions.value = [...questions.value, { kind, text: "", options: "" }])}
      >+ ${kind}</button>`)}</p>`;
}

/** @param {{question: import("./state.js").Asked, index: number}} props */
function Question({ question, index }) {
  const id = useId();
  const { kind, text, options } = question;
  const remove = () => (questions.value = questions.value.filter((_, i) => i !== index));
  return html`<fieldset class="question"><legend class="hidden">Question ${index + 1}</legend>
    <div class="row"><${Choice} label=${`Kind of question ${index + 1}`} options=${KINDS} value=${kind}
        onChange=${(/** @type {any} */ value) => edit(index, { kind: value })} />
      <button type="button" class="quiet remove" onClick=${remove}
        aria-label=${`Remove question ${index + 1}`} title="Remove">✕</button></div>
    <label class="hidden" for=${`${id}-text`}>Question ${index + 1}</label>
    <input id=${`${id}-text`} class="text" value=${text} placeholder=${HINTS[kind]}
      onInput=${(event) => edit(index, { text: event.target.value })} />
    ${kind !== "predicate" && html`<label class="hidden" for=${`${id}-options`}>Options of question ${
      index + 1}</label>
      <textarea id=${`${id}-options`} rows="3" spellcheck=${false} value=${options}
        placeholder=${`${OPTIONS[kind]}; value - description`}
        onInput=${(event) => edit(index, { options: event.target.value })}></textarea>`}
  </fieldset>`;
}
