/** Write: prompts, replies whose every token can be looked into, and branches. */
import { html, useEffect } from "../../lib/html.js";
import { stateHook } from "../../lib/restored.js";
import { Choice } from "../../parts/controls.js";
import { ENDS } from "../../parts/tints.js";
import { Comparison } from "./compare.js";
import { Inspector } from "./inspector.js";
import { viewKeys } from "./keys.js";
import { Pane } from "./pane.js";
import { PromptPanel } from "./prompt.js";
import { SettingsPanel } from "./settings.js";
import { keepState, restoreState } from "./share.js";
import { TINTS, mode, panes, reading, tint } from "./state.js";
import { Tree } from "./tree.js";

const NAMES = ["probability", "rank", "entropy", "kept mass", "none"];

const useAddress = stateHook(restoreState, keepState);

export default function Write() {
  useAddress();
  useEffect(() => {
    document.addEventListener("keydown", viewKeys);
    return () => document.removeEventListener("keydown", viewKeys);
  }, []);
  return html`
    <div class="side left">
      <${PromptPanel} />
      <${SettingsPanel} />
      <${Tree} />
    </div>
    <div class="centre">
      <div class="toolbar">
        ${mode.value === "chat" && html`<${Choice} label="Show replies as"
          options=${["tokens", "text"]} names=${["tokens", "text"]} value=${reading.value}
          onChange=${(value) => (reading.value = value)} />`}
        <${Choice} label="Tint tokens by" options=${TINTS} names=${NAMES} value=${tint.value}
          onChange=${(value) => (tint.value = value)} />
        <span class=${`legend${tint.value === "none" ? " off" : ""}`} aria-hidden="true">
          ${ENDS[tint.value][0]}<i class="scale">${Array.from({ length: 10 }, (_, i) =>
            html`<i class=${`t${i}`}></i>`)}</i>${ENDS[tint.value][1]}</span>
      </div>
      <div class=${`panes of-${panes.value.length}`}>
        ${panes.value.map((_, i) => html`<${Pane} key=${i} index=${i} />`)}
      </div>
      <${Comparison} />
    </div>
    <div class="side right"><${Inspector} /></div>`;
}
