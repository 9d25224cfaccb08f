/**
 * A long text of tokens. It is cut into chunks, inline like the text itself; only those near the
 * window hold an element a token, the others are plain text. Elements have neither padding nor
 * margins, so both take the same room, and nothing moves when one becomes the other.
 */
import { Component, html, useEffect, useRef, useState } from "../lib/html.js";

export const CHUNK = 64;
const MARGIN = "800px 0px";

/**
 * What a token shows: line breaks are to be seen, and parts of a character to be pointed at. The
 * token that ended the reply shows its name.
 * @param {import("../lib/tokens.js").Token} token
 */
export function shown(token) {
  if (token.special) return ` ■ ${token.text}`;
  return token.text === "" ? "·" : token.text.replace(/\n/g, "↵\n");
}

class Chunk extends Component {
  /** @param {any} next */
  shouldComponentUpdate(next) {
    return ["tokens", "from", "to", "live", "classOf", "selected", "last"].some(
      (name) => next[name] !== this.props[name],
    );
  }

  render({ tokens, from, to, live, classOf, selected }) {
    const part = tokens.slice(from, to);
    if (!live) return html`<span class="chunk" data-from=${from}>${part.map(shown).join("")}</span>`;
    return html`<span class="chunk" data-from=${from}>${part.map((token, k) => {
      const here = from + k === selected ? " selected" : "";
      return html`<span class=${`tok ${classOf(token, from + k)}${here}`} data-i=${from + k}
        >${shown(token)}</span>`;
    })}</span>`;
  }
}

/** Scroll a box, and nothing around it, until its selected token is seen. @param {HTMLElement} box */
function reveal(box) {
  const [own, token] = [box, box.querySelector(".selected")].map((each) =>
    each?.getBoundingClientRect());
  if (!own || !token) return;
  if (token.top < own.top) box.scrollTop -= own.top - token.top + token.height;
  if (token.bottom > own.bottom) box.scrollTop += token.bottom - own.bottom + token.height;
}

/**
 * @param {object} props
 * @param {import("../lib/tokens.js").Token[]} props.tokens may grow in place
 * @param {number} props.length how many of them are shown
 * @param {(token: import("../lib/tokens.js").Token, index: number) => string} props.classOf
 * @param {number} props.selected index of the selected token; -1 for none
 * @param {string} props.label
 * @param {(index: number) => void} props.onSelect
 * @param {(index: number) => void} props.onHover -1 where the pointer left
 * @param {(event: KeyboardEvent) => void} [props.onKeyDown]
 * @param {boolean} [props.follow] stay at the end while the text grows
 * @param {any} [props.before] what comes before the tokens
 */
export function TokenText({
  tokens, length, classOf, selected, label, onSelect, onHover, onKeyDown, follow, before,
}) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [near, setNear] = useState(/** @type {Set<number>} */ (new Set()));
  const numChunks = Math.ceil(length / CHUNK);
  useEffect(() => {
    const seen = (/** @type {IntersectionObserverEntry[]} */ entries) => setNear((old) => {
      const now = new Set(old);
      for (const { target, isIntersecting } of entries) {
        const from = Number(/** @type {HTMLElement} */ (target).dataset.from);
        if (isIntersecting) now.add(from);
        else now.delete(from);
      }
      return now;
    });
    const observer = new IntersectionObserver(seen, { root: box.current, rootMargin: MARGIN });
    for (const chunk of box.current?.querySelectorAll(".chunk") ?? []) observer.observe(chunk);
    return () => observer.disconnect();
  }, [numChunks, tokens]);
  useEffect(() => {
    const element = box.current;
    if (follow && element) element.scrollTop = element.scrollHeight;
  }, [length, follow]);
  useEffect(() => {
    if (selected >= 0 && box.current) reveal(box.current);
  }, [selected, tokens]);

  const indexAt = (/** @type {Event} */ event) => {
    const found = /** @type {HTMLElement} */ (event.target).closest("[data-i]");
    return found ? Number(/** @type {HTMLElement} */ (found).dataset.i) : -1;
  };
  const chunks = Array.from({ length: numChunks }, (_, i) => {
    const from = i * CHUNK;
    const to = Math.min(length, from + CHUNK);
    const mine = selected >= from && selected < to;
    const live = near.has(from) || mine || i === numChunks - 1;
    return html`<${Chunk} key=${from} tokens=${tokens} from=${from} to=${to} live=${live}
      classOf=${classOf} selected=${mine ? selected : -1}
      last=${i === numChunks - 1 && tokens[to - 1]?.special} />`;
  });
  return html`<div class="tokens" ref=${box} role="group" aria-label=${label} tabindex="0"
    onClick=${(event) => indexAt(event) >= 0 && onSelect(indexAt(event))}
    onMouseOver=${(event) => onHover(indexAt(event))} onMouseLeave=${() => onHover(-1)}
    onKeyDown=${onKeyDown}>${before}${chunks}</div>`;
}
