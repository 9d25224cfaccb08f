/** The prompt: a text to go on from, or a conversation. */
import { Choice, useId } from "../../parts/controls.js";
import { html } from "../../lib/html.js";
import { run, stop } from "./run.js";
import { branches, failure, messages, mode, panes, prompt } from "./state.js";
import { splitThoughts } from "../../lib/thoughts.js";
import { textOf } from "../../lib/tokens.js";

const ROLES = ["system", "user", "assistant"];

export function PromptPanel() {
  const running = branches.value.some((branch) => branch.status.value === "running");
  return html`<section class="panel prompt" aria-label="Prompt">
    <h2><${Choice} label="Kind of prompt" options=${["completion", "chat"]} value=${mode.value}
        names=${["Completion", "Chat"]} onChange=${(value) => (mode.value = value)} />
    </h2>
    ${mode.value === "chat" ? html`<${Conversation} />` : html`<${Completion} />`}
    <p class="row"><button type="button" class="main" onClick=${running ? stop : run}
      title="Ctrl+Enter">${running ? "Stop" : "Run"}</button>
      <span class="failure" role="alert">${failure.value}</span></p>
  </section>`;
}

function Completion() {
  return html`<textarea class="mono text" aria-label="Prompt" spellcheck=${false}
    value=${prompt.value} onInput=${(event) => (prompt.value = event.target.value)}></textarea>`;
}

/** @param {number} index @param {object} changes */
function edit(index, changes) {
  messages.value = messages.value.map((each, i) => (i === index ? { ...each, ...changes } : each));
}

function Conversation() {
  const reply = panes.value[0];
  const ended = reply !== null && reply.status.value !== "running";
  const canTake = ended && reply.tokens.length > 0;
  const take = () => {
    const content = splitThoughts(textOf(/** @type {any} */ (reply).tokens)).answer;
    messages.value = [
      ...messages.value, { role: "assistant", content }, { role: "user", content: "" },
    ];
  };
  return html`<div class="messages">
    ${messages.value.map((message, i) => html`<${Message} key=${i} index=${i}
      message=${message} />`)}
    <p class="row">
      <button type="button" class="quiet" onClick=${() => {
        messages.value = [...messages.value, { role: "user", content: "" }];
      }}>+ message</button>
      <button type="button" class="quiet" disabled=${!canTake} onClick=${take}
        title="Put the reply into the conversation, without its thoughts">+ reply</button>
    </p>
  </div>`;
}

/** @param {{index: number, message: {role: string, content: string}}} props */
function Message({ index, message }) {
  const id = useId();
  return html`<div class="message">
    <div class="row"><select aria-label="Role" value=${message.role}
      onChange=${(event) => edit(index, { role: event.target.value })}>
      ${ROLES.map((role) => html`<option value=${role} selected=${role === message.role}
        >${role}</option>`)}</select>
      <button type="button" class="quiet" aria-label=${`Remove message ${index + 1}`}
        disabled=${messages.value.length === 1}
        onClick=${() => (messages.value = messages.value.filter((_, i) => i !== index))}
        >×</button></div>
    <textarea id=${id} rows="3" aria-label=${`Message ${index + 1}`} value=${message.content}
      onInput=${(event) => edit(index, { content: event.target.value })}></textarea>
  </div>`;
}
