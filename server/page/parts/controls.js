/** Small controls that views share. */
import { html, useRef, useSignal } from "../lib/html.js";

let made = 0;
/** An id for a control and its label. */
export function useId() {
  const id = useRef("");
  id.current ||= `c${(made += 1)}`;
  return id.current;
}

/**
 * A number with a slider and a field; the slider may be bent, so that small values have room.
 * @param {{label: string, value: number, min: number, max: number, step: number, bend?: number,
 *   off?: number, onChange: (value: number) => void, disabled?: boolean}} props `off`: the value
 *   that does nothing
 */
export function Slider({ label, value, min, max, step, bend = 1, off, onChange, disabled }) {
  const id = useId();
  const place = ((Math.min(max, Math.max(min, value)) - min) / (max - min)) ** (1 / bend);
  const round = (/** @type {number} */ x) => Number((Math.round(x / step) * step).toFixed(4));
  return html`<div class=${`slider${value === off ? " off" : ""}`}>
    <label for=${id}>${label}</label>
    <input type="range" min="0" max="1000" value=${Math.round(place * 1000)} disabled=${disabled}
      aria-label=${`${label} slider`} aria-valuetext=${String(value)}
      onInput=${(event) =>
        onChange(round(min + (max - min) * (event.target.value / 1000) ** bend))} />
    <input id=${id} type="number" min=${min} step="any" value=${value} disabled=${disabled}
      onChange=${(event) => {
        const given = event.target.valueAsNumber;
        onChange(Number.isFinite(given) ? Math.max(min, given) : value);
      }} />
  </div>`;
}

/**
 * One of some words.
 * @param {{label: string, options: readonly string[], value: string, names?: string[],
 *   onChange: (value: any) => void}} props
 */
export function Choice({ label, options, value, names, onChange }) {
  return html`<div class="choice" role="group" aria-label=${label}>
    ${options.map((option, i) => html`<button type="button" aria-pressed=${option === value}
      onClick=${() => onChange(option)}>${names?.[i] ?? option}</button>`)}
  </div>`;
}

/**
 * A button that copies a text.
 * @param {{label: string, text: () => string, title?: string}} props
 */
export function Copy({ label, text, title }) {
  const done = useSignal("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text());
      done.value = "✓";
    } catch {
      done.value = "✗";
    }
    setTimeout(() => (done.value = ""), 1200);
  };
  return html`<button type="button" class="quiet copy" title=${title} onClick=${copy}>
    ${label}<span class="mark" aria-live="polite">${done}</span></button>`;
}

/**
 * @param {{label: string, value: any, title?: string}} props
 */
export function Fact({ label, value, title }) {
  return html`<div class="fact" title=${title}><dt>${label}</dt><dd>${value}</dd></div>`;
}
