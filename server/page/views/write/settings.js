/** Settings of a reply, one set a pane. */
import { Choice, Slider, useId } from "../../parts/controls.js";
import { html } from "../../lib/html.js";
import { change, editing, sets, toggleCompare } from "./state.js";

const GRAMMARS = {
  none: "none", choice: "one of", regex: "regular expression", json: "JSON schema",
  grammar: "Lark or GBNF grammar",
};
const HINTS = {
  choice: "one text a line", regex: "[a-z]+ = \\d+", json: '{"type": "object"}',
  grammar: 'start: "yes" | "no"',
};

/**
 * The four numbers that shape the distribution.
 * @param {{value: import("../../lib/distribution.js").Filters, disabled?: boolean,
 *   onChange: (changes: object) => void}} props
 */
export function FilterSliders({ value, disabled, onChange }) {
  return html`
    <${Slider} label="temperature" value=${value.temperature} min=${0} max=${2} step=${0.01}
      off=${1} disabled=${disabled} onChange=${(temperature) => onChange({ temperature })} />
    <${Slider} label="top-k" value=${value.top_k} min=${0} max=${1000} step=${1} bend=${3} off=${0}
      disabled=${disabled} onChange=${(k) => onChange({ top_k: Math.round(k) })} />
    <${Slider} label="top-p" value=${value.top_p} min=${0} max=${1} step=${0.001} bend=${0.5}
      off=${1} disabled=${disabled}
      onChange=${(p) => onChange({ top_p: Math.min(1, Math.max(0.001, p)) })} />
    <${Slider} label="min-p" value=${value.min_p} min=${0} max=${1} step=${0.001} bend=${2}
      off=${0} disabled=${disabled} onChange=${(p) => onChange({ min_p: Math.min(1, p) })} />`;
}

export function SettingsPanel() {
  const pane = Math.min(editing.value, sets.value.length - 1);
  const settings = sets.value[pane];
  const edit = (/** @type {object} */ changes) => change(pane, changes);
  const two = sets.value.length === 2;
  return html`<section class="panel settings" aria-label="Settings">
    <h2>Settings
      ${two && html`<${Choice} label="Settings of pane" options=${["0", "1"]} names=${["A", "B"]}
        value=${String(pane)} onChange=${(value) => (editing.value = Number(value))} />`}
      <button type="button" class="quiet end" aria-pressed=${two} onClick=${toggleCompare}
        title="Two settings side by side on one prompt">Compare</button></h2>
    <${FilterSliders} value=${settings} onChange=${edit} />
    <${MoreSettings} settings=${settings} edit=${edit} />
  </section>`;
}

/** @param {{settings: import("./state.js").Settings, edit: (changes: object) => void}} props */
function MoreSettings({ settings, edit }) {
  const id = useId();
  const hint = HINTS[settings.grammar] ?? "";
  return html`
    <div class="pair">
      <label>tokens <input type="number" min="1" value=${settings.max_tokens}
        onChange=${(event) => edit({ max_tokens: Math.max(1, event.target.valueAsNumber || 1) })}
        /></label>
      <label>seed <input inputmode="numeric" pattern="\\d*" placeholder="new" value=${settings.seed}
        onChange=${(event) => edit({ seed: event.target.value.replace(/\D/g, "") })} /></label>
    </div>
    <details open=${settings.stop !== "" || settings.grammar !== "none"}>
      <summary>Stop strings, grammar</summary>
      <label for=${`${id}-stop`}>stop, one a line</label>
      <textarea id=${`${id}-stop`} rows="1" value=${settings.stop} spellcheck=${false}
        onInput=${(event) => edit({ stop: event.target.value })}></textarea>
      <label for=${`${id}-kind`}>grammar</label>
      <select id=${`${id}-kind`} value=${settings.grammar}
        onChange=${(event) => edit({ grammar: event.target.value })}>
        ${Object.entries(GRAMMARS).map(([value, name]) => html`<option value=${value}
          selected=${value === settings.grammar}>${name}</option>`)}
      </select>
      ${settings.grammar !== "none" && html`<textarea class="mono" rows="3" placeholder=${hint}
        aria-label="The grammar" spellcheck=${false} value=${settings.grammarText}
        onInput=${(event) => edit({ grammarText: event.target.value })}></textarea>`}
    </details>`;
}
