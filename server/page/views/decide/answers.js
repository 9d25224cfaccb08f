/** Answers: the distribution over each question's options as bars, and how far to trust it. */
import { count, fixed, percent, seconds, visible } from "../../lib/format.js";
import { html } from "../../lib/html.js";

/**
 * @typedef {object} Decided
 * @property {any} body the request
 * @property {any} reply
 * @property {number} seconds
 */

/** @param {any} answer @returns {[string, number][]} */
function sharesOf(answer) {
  if (answer.type === "predicate") {
    return [["yes", answer.probability], ["no", 1 - answer.probability]];
  }
  return answer.probabilities.map((/** @type {any} */ each) =>
    [String(each.label ?? each.value), each.probability]);
}

/** @param {{found: Decided}} props */
export function Answers({ found }) {
  const { usage } = found.reply;
  return html`<div class="stats"><span><b>${count(found.reply.answers.length)}</b> answers</span>
      <span><b>${count(usage.input_tokens)}</b> tokens, ${
        count(usage.input_tokens_details.cached_tokens)} of them cached</span>
      <span><b>${seconds(found.seconds)}</b></span>
      ${found.reply.wording === "plain" && html`<span class="muted">no chat template: plain
        words</span>`}</div>
    <div class="answers">${found.reply.answers.map((/** @type {any} */ answer, /** @type {number} */ i) =>
      html`<${Answer} key=${i} answer=${answer} question=${found.body.questions[i]} />`)}</div>`;
}

/** @param {{answer: any, question: any}} props */
function Answer({ answer, question }) {
  const shares = sharesOf(answer);
  const best = Math.max(...shares.map(([, p]) => p));
  const { label_mass: mass, spread, argmax_is_label: isLabel, argmax_is_stable: isStable, orders } =
    answer.diagnostics;
  return html`<article class="answer"><h3>${question.instructions}
      ${answer.score !== undefined && answer.score !== null && html`<span class="muted">level ${
        fixed(answer.score)}</span>`}</h3>
    <table class="chances"><tbody>${shares.map(([name, p]) => html`<tr class=${p === best ? "best" : ""}>
      <th scope="row">${name}</th>
      <td class="track"><span class="extent" style=${{ width: `${100 * p}%` }}></span></td>
      <td class="chance" title=${String(p)}>${percent(p)}</td></tr>`)}</tbody></table>
    <p class="trust"><span class=${mass < 0.5 ? "warn" : ""}
        title="The probability that a reply begins with a label">label mass ${percent(mass)}</span>
      ${orders.length > 1 && html`<span class=${isStable ? "" : "warn"}
        title="The most that an option's probability differs between two orders">spread over ${
        orders.length} orders ${percent(spread)}</span>`}
      ${!isLabel && html`<span class="warn">likelier than every label:${" "}
        <code>${visible(orders[0].best_other.token)}</code></span>`}</p></article>`;
}
