/** What the Decide view shows, and its state in the address. */
import { signal } from "../../lib/html.js";
import { stateOf } from "../../lib/route.js";

export const KINDS = /** @type {const} */ (["predicate", "choice", "score"]);
export const LABELS = /** @type {const} */ (["letters", "options"]);

/**
 * @typedef {object} Asked
 * @property {(typeof KINDS)[number]} kind
 * @property {string} text what is asked, or claimed
 * @property {string} options of a choice or a score, one a line, with " - description" after it
 */

export const input = signal("I was charged twice for order 4711. Nobody answers my mails!");
export const questions = signal(/** @type {Asked[]} */ ([
  { kind: "predicate", text: "The customer is angry.", options: "" },
  { kind: "choice", text: "Which team should answer?",
    options: "billing - payments and refunds\nsupport - something does not work\nsales - wants to buy" },
  { kind: "score", text: "How urgent is it?", options: "can wait\nthis week\ntoday" },
]));
/** In how many orders options are shown. */
export const orders = signal(4);
/** Whether what a question gives without a text is divided out. */
export const prior = signal(false);
export const labels = signal(/** @type {(typeof LABELS)[number]} */ ("letters"));

const isText = (/** @type {unknown} */ value) => typeof value === "string";
/** @type {Parameters<typeof stateOf>[1]} */
const FIELDS = [
  ["input", input, isText],
  ["questions", questions, (value) => Array.isArray(value) && value.every((each) =>
    KINDS.includes(each?.kind) && isText(each.text) && isText(each.options))],
  ["orders", orders, (value) => Number.isInteger(value) && value >= 1 && value <= 64],
  ["prior", prior, (value) => typeof value === "boolean"],
  ["labels", labels, (value) => LABELS.includes(value)],
];

export const { restoreState, keepState } = stateOf("decide", FIELDS);

/**
 * A line as an option: a value, and what comes after " - ".
 * @param {string} line
 * @param {string} name what the API calls the value
 */
function optionOf(line, name) {
  const [value, ...rest] = line.split(" - ");
  return rest.length ? { [name]: value, description: rest.join(" - ") } : { [name]: value };
}

/** @param {Asked} question */
function questionOf({ kind, text, options }) {
  const lines = options.split("\n").map((line) => line.trim()).filter((line) => line !== "");
  if (kind === "predicate") return { type: kind, instructions: text };
  if (kind === "score") {
    return { type: kind, instructions: text, levels: lines.map((line) => optionOf(line, "label")) };
  }
  return { type: kind, instructions: text, choices: lines.map((line) => optionOf(line, "value")) };
}

/** @param {string | undefined} model */
export const bodyOf = (model) => ({
  model,
  input: input.value,
  questions: questions.value.map(questionOf),
  ...(orders.value > 1 ? { permute: orders.value } : {}),
  ...(prior.value ? { prior: "content_free" } : {}),
  ...(labels.value === "options" ? { labels: labels.value } : {}),
  diagnostics: true,
});
