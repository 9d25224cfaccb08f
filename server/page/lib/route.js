/**
 * The fragment of the address: `#/write/STATE`. A view writes its state there, so that the address
 * can be kept and shared; the key is never part of it.
 */
import { batch, effect, signal } from "./html.js";
import { packState, unpackState } from "./ids.js";

export const VIEWS = /** @type {const} */ (["write", "score", "decide", "server"]);

function read() {
  const [, name, state] = /^#\/(\w+)(?:\/([\w-]+))?/.exec(location.hash) ?? [];
  return { view: VIEWS.find((each) => each === name) ?? "write", state: state ?? "" };
}

const first = read();
/** The view that is shown. */
export const view = signal(first.view);
/** The last state of each view, as it is in the address when that view is shown. */
const states = /** @type {Record<string, string>} */ ({ [first.view]: first.state });
/** Grows when the address was changed from outside: by hand, or by going back. */
export const visits = signal(0);

addEventListener("hashchange", () => {
  const now = read();
  if (now.state && now.state !== states[now.view]) {
    states[now.view] = now.state;
    visits.value += 1;
  }
  view.value = now.view;
});

/** @param {string} name */
export const hrefOf = (name) => `#/${name}${states[name] ? `/${states[name]}` : ""}`;

/**
 * The state in the address; null where there is none, or none that can be read.
 * @param {string} name
 */
export async function loadState(name) {
  try {
    return states[name] ? await unpackState(states[name]) : null;
  } catch {
    return null;
  }
}

/** @type {Record<string, ReturnType<typeof setTimeout>>} */
const timers = {};

/**
 * Write a view's state into the address, a moment after the last change.
 * @param {string} name
 * @param {() => unknown} state
 */
export function saveState(name, state) {
  clearTimeout(timers[name]);
  timers[name] = setTimeout(async () => {
    states[name] = await packState(state());
    if (view.value === name) history.replaceState(null, "", hrefOf(name));
  }, 250);
}

/**
 * A view's state in the address, field by field.
 * @param {string} name of the view
 * @param {[string, {value: any}, (value: any) => boolean][]} fields a name in the state, a signal,
 * and whether a value found in the address may be the signal's
 */
export function stateOf(name, fields) {
  return {
    /** Take the state in the address; returns whether there was one. */
    async restoreState() {
      const state = await loadState(name);
      batch(() => {
        for (const [key, field, check] of fields) {
          if (state && check(state[key])) field.value = state[key];
        }
      });
      return state !== null;
    },
    /** Write the state into the address whenever it changes. */
    keepState: () => effect(() => {
      const state = Object.fromEntries(fields.map(([key, field]) => [key, field.value]));
      saveState(name, () => state);
    }),
  };
}
