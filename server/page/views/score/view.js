/** Score: how likely labels are after items, and how surprising texts are. */
import { html, useEffect } from "../../lib/html.js";
import { visits } from "../../lib/route.js";
import { info } from "../../lib/server.js";
import { Choice } from "../../parts/controls.js";
import { Labels, score } from "./labels.js";
import { KINDS, keepState, kind, restoreState } from "./state.js";
import { Texts, measure } from "./texts.js";

/** The visit whose state has been taken from the address. */
let restored = -1;

async function restoreOnce() {
  if (restored === visits.value) return;
  restored = visits.value;
  if (await restoreState()) await go();
}

const go = () => (kind.value === "labels" ? score() : measure());

/** @param {KeyboardEvent} event */
function keys(event) {
  if ((event.ctrlKey || event.metaKey) && event.key === "Enter") {
    event.preventDefault();
    go();
  }
}

export default function Score() {
  const ready = info.value !== null;
  useEffect(() => {
    if (!ready) return undefined;
    let end = () => {};
    let gone = false;
    restoreOnce().then(() => {
      if (!gone) end = keepState();
    });
    return () => {
      gone = true;
      end();
    };
  }, [ready, visits.value]);
  useEffect(() => {
    document.addEventListener("keydown", keys);
    return () => document.removeEventListener("keydown", keys);
  }, []);
  return html`
    <div class="toolbar"><${Choice} label="What to score" options=${KINDS} value=${kind.value}
      names=${["Labels after items", "Surprise of texts"]}
      onChange=${(value) => (kind.value = value)} /></div>
    ${kind.value === "labels" ? html`<${Labels} />` : html`<${Texts} />`}`;
}
