/** What a model thought before it answered, apart from its answer. */
const BEGIN = "<think>";
const END = "</think>";

/**
 * Thoughts without an end are all thoughts; those without a beginning began in the prompt.
 * @param {string} text
 * @returns {{thoughts: string, answer: string}}
 */
export function splitThoughts(text) {
  const end = text.indexOf(END);
  const begin = text.slice(0, end < 0 ? undefined : end).indexOf(BEGIN);
  if (begin < 0 && end < 0) return { thoughts: "", answer: text };
  const before = begin < 0 ? "" : text.slice(0, begin);
  const from = begin < 0 ? 0 : begin + BEGIN.length;
  const after = end < 0 ? "" : text.slice(end + END.length);
  return {
    thoughts: text.slice(from, end < 0 ? undefined : end).trim(),
    answer: (before + after).trim(),
  };
}
