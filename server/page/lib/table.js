/** Tables as people paste them, CSV or JSON lines, and as they take them away. */

/**
 * Rows of CSV or tab-separated text: quotes, doubled quotes and line breaks in them included.
 * @param {string} text
 * @returns {string[][]}
 */
export function parseCsv(text) {
  const comma = !/^[^"\n]*\t/.test(text);
  /** @type {string[][]} */
  const rows = [];
  /** @type {string[]} */
  let row = [];
  let cell = "";
  let quoted = false;
  for (let i = 0; i < text.length; i += 1) {
    const c = text[i];
    if (quoted) {
      if (c === '"' && text[i + 1] === '"') cell += text[(i += 1)];
      else if (c === '"') quoted = false;
      else cell += c;
    } else if (c === '"' && cell === "") quoted = true;
    else if (c === (comma ? "," : "\t")) {
      row.push(cell);
      cell = "";
    } else if (c === "\n" || c === "\r") {
      if (c === "\r" && text[i + 1] === "\n") i += 1;
      rows.push([...row, cell]);
      row = [];
      cell = "";
    } else cell += c;
  }
  if (cell || row.length) rows.push([...row, cell]);
  return rows.filter((each) => each.some((value) => value !== ""));
}

/**
 * Items of a pasted text. JSON lines give strings, or objects' `item`, `text`, `document` or first
 * string; CSV, which has a header with such a name or begins with a quote, that column or its first;
 * anything else a line an item.
 * @param {string} text
 * @returns {{items: string[], from: "JSON lines" | "CSV" | "lines"}}
 */
export function parseItems(text) {
  const lines = text.split(/\r?\n/).filter((line) => line.trim());
  if (lines.length && lines.every((line) => /^\s*[{["]/.test(line))) {
    try {
      return { items: lines.flatMap((line) => itemsOf(JSON.parse(line))), from: "JSON lines" };
    } catch {
      // not JSON after all
    }
  }
  const rows = parseCsv(text);
  const header = (rows[0] ?? []).map((name) => name.trim().toLowerCase());
  const column = header.findIndex((name) => NAMES.includes(name));
  if (column >= 0 || text.startsWith('"')) {
    const items = rows.slice(column < 0 ? 0 : 1).map((row) => row[Math.max(column, 0)] ?? "");
    return { items, from: "CSV" };
  }
  return { items: text.split(/\r?\n/).filter((line) => line !== ""), from: "lines" };
}

const NAMES = ["item", "items", "text", "document", "candidate", "answer"];

/** @param {unknown} value @returns {string[]} */
function itemsOf(value) {
  if (typeof value === "string") return [value];
  if (Array.isArray(value)) return value.flatMap(itemsOf);
  const fields = /** @type {Record<string, unknown>} */ (value ?? {});
  const name = NAMES.find((each) => typeof fields[each] === "string")
    ?? Object.keys(fields).find((each) => typeof fields[each] === "string");
  if (name === undefined) throw new Error("an object without a text");
  return [/** @type {string} */ (fields[name])];
}

/** @param {(string | number)[][]} rows */
export function toCsv(rows) {
  const cell = (/** @type {string | number} */ value) => {
    const text = String(value);
    return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  return rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

/**
 * Hand a text to the browser as a file.
 * @param {string} name
 * @param {string} kind
 * @param {string} text
 */
export function download(name, kind, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: kind }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
