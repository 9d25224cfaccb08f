/** What is around the views: their names, the server's state, the key, the theme. */
import { key, keyWanted, setKey } from "../lib/api.js";
import { html, signal, useEffect, useRef } from "../lib/html.js";
import { VIEWS, hrefOf, view } from "../lib/route.js";
import { info, trouble } from "../lib/server.js";
import { useId } from "./controls.js";

const THEMES = ["system", "light", "dark"];
const SIGNS = { system: "◐", light: "☀", dark: "☾" };
const theme = signal(localStorage.getItem("tailrace.theme") ?? "system");
const asking = signal(false);

function applyTheme() {
  document.documentElement.dataset.theme = theme.value;
}
applyTheme();

function nextTheme() {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length];
  localStorage.setItem("tailrace.theme", theme.value);
  applyTheme();
}

const NAMES = { write: "Write", score: "Score", decide: "Decide", server: "Server" };

export function Header() {
  const about = info.value;
  const state = about ? "up" : trouble.value ? "down" : "wait";
  return html`<header class="top">
    <a class="brand" href="#/write">tailrace</a>
    <nav aria-label="Views">
      ${VIEWS.map((name) => html`<a href=${hrefOf(name)}
        aria-current=${view.value === name ? "page" : undefined}>${NAMES[name]}</a>`)}
    </nav>
    <span class=${`model ${state}`} title=${about ? `${about.root}, ${about.device}` : trouble.value}
      ><i aria-hidden="true"></i><span>${about?.model ?? (trouble.value || "…")}</span></span>
    <span class="tools">
      <a class="quiet" href="docs">API</a>
      <button type="button" class="quiet" onClick=${() => (asking.value = true)}
        title="API key">Key${key.value ? " ✓" : ""}</button>
      <button type="button" class="quiet theme" onClick=${nextTheme}
        aria-label=${`Theme: ${theme.value}`} title=${`Theme: ${theme.value}`}
        >${SIGNS[theme.value]}</button>
    </span>
  </header>`;
}

/** Asks for the key: where the server wants one, or where somebody wants to change it. */
export function KeyDialog() {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const id = useId();
  const open = keyWanted.value || asking.value;
  useEffect(() => {
    if (open && !dialog.current?.open) dialog.current?.showModal();
    if (!open) dialog.current?.close();
  }, [open]);
  const close = () => {
    asking.value = false;
    keyWanted.value = false;
  };
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    setKey(field.current?.value.trim() ?? "");
    close();
  };
  return html`<dialog ref=${dialog} class="key" aria-labelledby=${`${id}-title`} onCancel=${close}>
    <form method="dialog" onSubmit=${submit}>
      <h2 id=${`${id}-title`}>API key</h2>
      <p>${keyWanted.value && key.value ? "The server refused this key. " : ""}${
        keyWanted.value ? "This server answers to those who have a key. " : ""}It stays in this
        tab and goes to this server alone.</p>
      <label for=${id}>Key</label>
      <input id=${id} ref=${field} type="password" autocomplete="off" value=${key.value} />
      <p class="row"><button type="submit" class="main">Use it</button>
        <button type="button" onClick=${close}>Cancel</button></p>
    </form>
  </dialog>`;
}
