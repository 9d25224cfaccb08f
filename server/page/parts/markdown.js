/**
 * Markdown as elements: headings, lists, quotes, code, rules, emphasis, links. Everything else,
 * HTML and images among it, is shown as the text that it is. No pattern looks back over what it
 * has passed, so a long text takes time in proportion to its length.
 */
import { h, html } from "../lib/html.js";

const FENCE = /^ {0,3}(```+|~~~+)/;
const HEADING = /^ {0,3}(#{1,6}) +(.*)$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const ITEM = /^( *)(?:[-*+]|(\d{1,9})[.)]) +(.*)$/;
const INLINE = new RegExp([
  /(?<ticks>`+)(?<code>[^`]+)\k<ticks>(?!`)/,
  /\*\*(?=\S)(?<strong>[^*]+)\*\*/,
  /\*(?=\S)(?<em>[^*]+)\*/,
  /\[(?<label>[^[\]]+)\]\((?<href>https?:\/\/[^\s()]+)\)/,
  /\\(?<escaped>[\\`*_{}[\]()#+.!>~-])/,
].map((each) => each.source).join("|"), "g");
const MAX_DEPTH = 8;

/** @param {{text: string}} props */
export function Markdown({ text }) {
  return html`<div class="markdown">${blocks(text.split("\n"), 0)}</div>`;
}

/** @param {string[]} lines @param {number} depth @returns {any[]} */
function blocks(lines, depth) {
  if (depth > MAX_DEPTH) return [html`<p>${lines.join("\n")}</p>`];
  const found = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) {
      at += 1;
      continue;
    }
    const [block, next] = fence(lines, at) ?? single(line, at) ?? quote(lines, at, depth)
      ?? list(lines, at, depth) ?? paragraph(lines, at);
    found.push(block);
    at = next;
  }
  return found;
}

/** @typedef {[any, number]} Found a block, and the line after it */

/** @param {string[]} lines @param {number} at @returns {Found | null} */
function fence(lines, at) {
  const mark = FENCE.exec(lines[at])?.[1];
  if (!mark) return null;
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(mark)) end += 1;
  return [html`<pre><code>${lines.slice(at + 1, end).join("\n")}</code></pre>`, end + 1];
}

/** A heading or a rule. @param {string} line @param {number} at @returns {Found | null} */
function single(line, at) {
  if (RULE.test(line)) return [html`<hr />`, at + 1];
  const heading = HEADING.exec(line);
  if (!heading) return null;
  return [h(`h${Math.min(6, heading[1].length + 2)}`, null, inline(heading[2])), at + 1];
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {Found | null} */
function quote(lines, at, depth) {
  const own = [];
  for (let found; at < lines.length && (found = QUOTE.exec(lines[at])); at += 1) own.push(found[1]);
  return own.length ? [html`<blockquote>${blocks(own, depth + 1)}</blockquote>`, at] : null;
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {Found | null} */
function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  if (!first) return null;
  const [, { length: indent }, number] = first;
  /** @type {string[][]} */
  const items = [];
  for (; at < lines.length; at += 1) {
    const line = lines[at];
    const item = ITEM.exec(line);
    if (item && item[1].length <= indent && !RULE.test(line)) {
      if ((item[2] === undefined) !== (number === undefined)) break;
      items.push([item[3]]);
    } else if (!line.trim() || line.startsWith(" ".repeat(indent + 2))) {
      items[items.length - 1].push(line.slice(indent + 2));
    } else {
      break;
    }
  }
  const rows = items.map((own) => html`<li>${blocks(own, depth + 1)}</li>`);
  return [number === undefined ? html`<ul>${rows}</ul>`
    : html`<ol start=${Number(number)}>${rows}</ol>`, at];
}

/** @param {string[]} lines @param {number} at @returns {Found} */
function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim()
    && ![FENCE, HEADING, RULE, QUOTE, ITEM].some((each) => each.test(lines[end]))) end += 1;
  return [html`<p>${inline(lines.slice(at, end).join("\n"))}</p>`, end];
}

/** @param {string} text @returns {any[]} */
function inline(text) {
  const found = [];
  let from = 0;
  for (const match of text.matchAll(INLINE)) {
    const { code, strong, em, label, href, escaped } = /** @type {any} */ (match.groups);
    found.push(text.slice(from, match.index));
    from = match.index + match[0].length;
    if (code) found.push(html`<code>${code}</code>`);
    else if (strong) found.push(html`<strong>${inline(strong)}</strong>`);
    else if (em) found.push(html`<em>${inline(em)}</em>`);
    else if (href) found.push(html`<a href=${href} rel="noreferrer" target="_blank">${label}</a>`);
    else found.push(escaped);
  }
  return [...found, text.slice(from)];
}
