/** The tokens a position could have had: the model's probability beside what settings left of it. */
import { processedBounds, whyCut } from "../../lib/distribution.js";
import { exact, percent, probabilityOf, visible } from "../../lib/format.js";
import { html } from "../../lib/html.js";
import { info } from "../../lib/server.js";
import { alternativeKeys } from "./keys.js";
import { answer, filters, known } from "./position.js";
import { branchAt } from "./run.js";

/**
 * @typedef {object} Row
 * @property {number} id
 * @property {string} text
 * @property {number} raw logprob
 * @property {number | null} processed logprob; null until the server said it
 * @property {import("../../lib/distribution.js").Range | null} range bounds of its probability
 * @property {string} note why it was cut
 */

/**
 * @param {import("./branch.js").Branch} branch
 * @param {import("../../lib/tokens.js").Token} token
 * @returns {{rows: Row[], rest: {raw: number, processed: number | null, range: any}, kept: any}}
 */
function tableOf(branch, token) {
  const reported = answer.value;
  const wanted = /** @type {any} */ (filters.value);
  const raw = reported?.raw ?? (branch.constrained ? [] : token.top);
  const top = known.value.map((each) => probabilityOf(each.logprob));
  const bounds = !reported && top.length
    ? processedBounds(top, info.value?.vocab_size ?? top.length, wanted) : null;
  const first = raw.length ? probabilityOf(raw[0].logprob) : 1;
  const rows = raw.map((each, i) => {
    const p = probabilityOf(each.logprob);
    const processed = reported ? reported.processed.get(each.id) ?? -9999 : null;
    const rank = each.id === token.id && !branch.constrained ? token.rank ?? i + 1 : i + 1;
    const cut = branch.constrained ? "grammar or filter" : whyCut(p / first, rank, wanted);
    return {
      id: each.id, text: each.text, raw: each.logprob, processed,
      range: bounds?.processed[i] ?? null,
      note: processed !== null && processed <= -9999 ? cut ?? "cut" : boundNote(bounds?.cuts[i]),
    };
  });
  const left = (/** @type {number[]} */ all) => Math.max(0, 1 - all.reduce((a, b) => a + b, 0));
  return {
    rows,
    rest: {
      raw: left(rows.map((row) => probabilityOf(row.raw))),
      processed: reported ? left(rows.map((row) => probabilityOf(row.processed ?? -9999))) : null,
      range: bounds?.rest ?? null,
    },
    kept: reported ? reported.kept : bounds?.kept ?? null,
  };
}

/** @param {string | null | undefined} cut */
const boundNote = (cut) => (cut === "open" ? "?" : cut ?? "");

/** @param {{branch: import("./branch.js").Branch, index: number}} props */
export function Alternatives({ branch, index }) {
  const token = branch.tokens[index];
  const { rows, rest, kept } = tableOf(branch, token);
  const most = Math.max(rest.raw, ...rows.map((row) => probabilityOf(row.raw)),
    ...rows.map((row) => (row.processed === null ? row.range?.[1] ?? 0
      : probabilityOf(row.processed))));
  return html`
    <${Kept} kept=${kept} branch=${branch} />
    <table class="alternatives" onKeyDown=${alternativeKeys}>
      <caption class="hidden">Alternatives of token ${index + 1}</caption>
      <thead><tr><th scope="col">token</th><th scope="col">model</th>
        <th scope="col">after settings</th></tr></thead>
      <tbody>
        ${rows.map((row) => html`<${AlternativeRow} key=${row.id} row=${row} most=${most}
          chosen=${row.id === token.id} onPick=${() => branchAt(branch, index, {
            id: row.id, text: row.text, logprob: row.raw })} />`)}
        <tr class="rest"><th scope="row">all others</th>
          <td><${Bar} share=${rest.raw / most} />${percent(rest.raw)}</td>
          <td><${Bar} share=${(rest.processed ?? rest.range?.[1] ?? 0) / most}
            open=${rest.processed === null} />${
            rest.processed === null ? rangeText(rest.range) : percent(rest.processed)}</td></tr>
      </tbody>
    </table>`;
}

/** @param {{share: number, open?: boolean, low?: number}} props */
function Bar({ share, open, low }) {
  const width = (/** @type {number} */ part) => ({ width: `${Math.min(100, 100 * part)}%` });
  return html`<span class=${`bar${open ? " open" : ""}`} aria-hidden="true">
    <i style=${width(share)}></i>${low !== undefined && html`<b style=${width(low)}></b>`}</span>`;
}

/** @param {import("../../lib/distribution.js").Range | null} range */
const rangeText = (range) => {
  if (!range) return "…";
  const [low, high] = range.map(percent);
  return low === high ? `≈ ${low}` : `≤ ${high}`;
};

/** @param {{row: Row, most: number, chosen: boolean, onPick: () => void}} props */
function AlternativeRow({ row, most, chosen, onPick }) {
  const raw = probabilityOf(row.raw);
  const cut = row.processed !== null && row.processed <= -9999;
  const name = visible(row.text);
  return html`<tr class=${`${chosen ? "chosen" : ""}${cut ? " cut" : ""}`}>
    <th scope="row"><button type="button" class="pick" onClick=${onPick}
      aria-label=${`Go on from ${name}, ${percent(raw)}${chosen ? ", chosen" : ""}`}
      title=${`id ${row.id}; go on from here`}><code>${name}</code></button></th>
    <td title=${`logprob ${exact(row.raw)}`}><${Bar} share=${raw / most} />${percent(raw)}</td>
    ${row.processed === null
      ? html`<td class="bounds"><${Bar} open share=${(row.range?.[1] ?? 0) / most}
          low=${(row.range?.[0] ?? 0) / most} />${rangeText(row.range)}</td>`
      : html`<td title=${`logprob ${exact(row.processed)}`}>
          <${Bar} share=${probabilityOf(row.processed) / most} />${
          cut ? html`<em>${row.note}</em>` : percent(probabilityOf(row.processed))}</td>`}
  </tr>`;
}

/** @param {{kept: any, branch: import("./branch.js").Branch}} props */
function Kept({ kept, branch }) {
  const isRange = Array.isArray(kept);
  const share = isRange ? kept[1] : kept === null ? null : Math.exp(kept);
  const words = share === null ? "…" : isRange ? rangeText(kept) : percent(share);
  const by = branch.constrained ? "grammar and filters" : "filters";
  return html`<div class="kept" title=${isRange || kept === null ? "" : `log ${exact(kept)}`}>
    <span>${by} kept</span><${Bar} share=${share ?? 0} open=${isRange} />
    <b>${words}</b><span class="muted">of the mass</span></div>`;
}
