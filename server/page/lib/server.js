/** What the page knows of the server it came from. */
import { ApiError, json, key, keyWanted } from "./api.js";
import { effect, signal } from "./html.js";

/** The reply of `/server_info`; null until it came. */
export const info = signal(/** @type {any} */ (null));
/** Why it did not come; empty where it did. */
export const trouble = signal("");

async function load() {
  try {
    info.value = await json("server_info");
    trouble.value = "";
    keyWanted.value = false;
  } catch (error) {
    info.value = null;
    trouble.value = error instanceof ApiError ? error.message : String(error);
  }
}

/** Ask now, and again whenever another key is given. */
export function start() {
  effect(() => {
    key.value;
    load();
  });
}

/** The number of top tokens to ask for: as many as the server lets, up to 20. */
export function topTokens() {
  const most = info.value?.max_logprobs ?? 20;
  return most < 0 ? 20 : Math.min(most, 20);
}
