/** The page: a header, and the view that the address names, loaded when it is first shown. */
import { html, render, useEffect, useSignal } from "./lib/html.js";
import { view } from "./lib/route.js";
import { start } from "./lib/server.js";
import { Header, KeyDialog } from "./parts/shell.js";

const LOADERS = {
  write: () => import("./views/write/view.js"),
  score: () => import("./views/score/view.js"),
  decide: () => import("./views/decide/view.js"),
  server: () => import("./views/server/view.js"),
};

function Page() {
  const loaded = useSignal(/** @type {Record<string, any>} */ ({}));
  const name = view.value;
  useEffect(() => {
    document.title = `tailrace – ${name}`;
    if (loaded.value[name]) return;
    LOADERS[name]().then((module) => {
      loaded.value = { ...loaded.value, [name]: module.default };
    });
  }, [name]);
  const View = loaded.value[name];
  return html`<${Header} />
    <main class=${`view ${name}`}>${View ? html`<${View} />` : null}</main>
    <${KeyDialog} />`;
}

start();
render(html`<${Page} />`, /** @type {HTMLElement} */ (document.getElementById("app")));
