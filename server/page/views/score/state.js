/** What the Score view shows, and its state in the address. */
import { signal } from "../../lib/html.js";
import { stateOf } from "../../lib/route.js";

export const KINDS = /** @type {const} */ (["labels", "texts"]);
export const kind = signal(/** @type {(typeof KINDS)[number]} */ ("labels"));

export const query = signal("import os\n\ndef remove(path):\n    os.");
/** The items as they were typed or pasted. */
export const itemsText = signal("un\nre\npath.\nmk\nget");
export const labelsText = signal("link\nmove\nname\nexists\nenv\ndir");
/** Whether scores share the mass among the labels. */
export const softmax = signal(false);
export const itemFirst = signal(false);
/** The column that rows are sorted by: -1 for the given order, then labels, then the others. */
export const sort = signal({ column: -1, down: false });

export const texts = signal([
  "for i in range(10):\n    print(i)\n", "for i in range(10):\n    return i\n",
]);
export const tint = signal("probability");

/** @type {Parameters<typeof stateOf>[1]} */
const FIELDS = [
  ["kind", kind, (value) => KINDS.includes(value)],
  ["query", query, isText],
  ["items", itemsText, isText],
  ["labels", labelsText, isText],
  ["softmax", softmax, (value) => typeof value === "boolean"],
  ["itemFirst", itemFirst, (value) => typeof value === "boolean"],
  ["sort", sort, (value) => Number.isInteger(value?.column) && typeof value.down === "boolean"],
  ["texts", texts, (value) => Array.isArray(value) && value.length === 2 && value.every(isText)],
];

/** @param {unknown} value */
function isText(value) {
  return typeof value === "string";
}

export const { restoreState, keepState } = stateOf("score", FIELDS);
