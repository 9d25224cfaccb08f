/** The self-test of the sampler, `tailrace verify --quick`, run beside the traffic. */
import { ApiError } from "../../lib/api.js";
import { html, signal } from "../../lib/html.js";
import { info } from "../../lib/server.js";
import { lines } from "../../lib/stream.js";
import { Drawing } from "./verify_drawing.js";

/** @typedef {{check: string, path: string, statistic: string, threshold: string, odds: number, passed: boolean}} Check */

const checks = signal(/** @type {Check[]} */ ([]));
const state = signal("");
const running = signal(false);
let abort = new AbortController();

async function verify() {
  abort = new AbortController();
  checks.value = [];
  state.value = "running";
  running.value = true;
  try {
    for await (const line of lines("verify", { method: "POST", signal: abort.signal })) {
      if (!line) continue;
      const parsed = JSON.parse(line);
      if (parsed.end) state.value = `${parsed.end} after ${parsed.seconds} s`;
      else checks.value = [...checks.value, parsed];
    }
  } catch (error) {
    state.value = abort.signal.aborted ? "stopped"
      : error instanceof ApiError ? error.message : String(error);
  }
  running.value = false;
}

export function Verify() {
  if (!info.value?.verify) return null;
  const failed = checks.value.filter((check) => !check.passed).length;
  return html`<section class="panel verify" aria-label="Self-test of the sampler">
    <h2>Self-test of the sampler
      <span class="muted" role="status">${state.value}${checks.value.length
        ? `, ${checks.value.length} checks, ${failed} failed` : ""}</span>
      <button type="button" class="end" onClick=${() => (running.value ? abort.abort() : verify())}>${
        running.value ? "Stop" : "Run"}</button></h2>
    ${checks.value.length ? html`<${Table} />` : html`<p class="muted">Counts of rare tokens and χ² of
      every sampling path, on this machine, at the lowest priority beside what is served. It takes a
      minute or so.</p>`}
  </section>`;
}

function Table() {
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Checks"><table>
    <thead><tr><th scope="col">check</th><th scope="col">path</th><th scope="col">statistic</th>
      <th scope="col">drawn</th><th scope="col">threshold</th><th scope="col">false alarm</th>
      <th scope="col">result</th></tr></thead>
    <tbody>${checks.value.map((check) => html`<tr key=${check.check + check.path}>
      <th scope="row">${check.check}</th><td>${check.path}</td><td>${check.statistic}</td>
      <td class="drawing"><${Drawing} check=${check} /></td><td>${check.threshold}</td>
      <td>${check.odds ? check.odds.toExponential(0) : "never"}</td>
      <td class=${check.passed ? "pass" : "fail"}>${check.passed ? "pass" : "FAIL"}</td></tr>`)}
    </tbody></table></div>`;
}
