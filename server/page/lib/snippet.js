/** A request as a command or a program that sends it. */
import { BASE, key } from "./api.js";

/** @param {string} text */
const shellQuote = (text) => `'${text.replace(/'/g, `'\\''`)}'`;

/**
 * @param {string} path
 * @param {object} body
 */
export function curl(path, body) {
  const lines = [`curl ${new URL(path, BASE)} -H 'Content-Type: application/json'`];
  if (key.value) lines.push(`-H "Authorization: Bearer $API_KEY"`);
  lines.push(`-d ${shellQuote(JSON.stringify(body, null, 2))}`);
  return lines.join(" \\\n    ");
}

/** @param {unknown} value @param {string} indent @returns {string} */
function pythonValue(value, indent) {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  if (Array.isArray(value)) {
    const parts = value.map((each) => pythonValue(each, inner));
    if (value.every((each) => typeof each !== "object")) return `[${parts.join(", ")}]`;
    return `[\n${parts.map((part) => `${inner}${part},\n`).join("")}${indent}]`;
  }
  const fields = Object.entries(value).filter(([, each]) => each !== undefined);
  const parts = fields.map(([name, each]) =>
    `${inner}${JSON.stringify(name)}: ${pythonValue(each, inner)},\n`);
  return `{\n${parts.join("")}${indent}}`;
}

/**
 * A program of the standard library alone.
 * @param {string} path
 * @param {object} body
 */
export function python(path, body) {
  const headers = key.value
    ? `{"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['API_KEY']}"}`
    : `{"Content-Type": "application/json"}`;
  return `import json
${key.value ? "import os\n" : ""}from urllib.request import Request, urlopen

body = ${pythonValue(body, "")}
request = Request(
    ${JSON.stringify(String(new URL(path, BASE)))},
    data=json.dumps(body).encode(),
    headers=${headers},
)
print(json.dumps(json.load(urlopen(request)), indent=2))
`;
}
