// Loops of tools with OpenAI's package: runTools, plain and streamed, which calls functions itself.
import OpenAI from "openai";

const [baseURL, model, prompt] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const parameters = {
  type: "object",
  properties: { a: { type: "integer" }, b: { type: "integer" } },
  required: ["a", "b"],
  additionalProperties: false,
};
let calls = [];
function toolOf(name, compute) {
  return {
    type: "function",
    function: {
      name,
      description: `To ${name} two numbers.`,
      parameters,
      parse: JSON.parse,
      function: ({ a, b }) => {
        calls.push([name, a, b]);
        return String(compute(a, b));
      },
    },
  };
}
const tools = [toolOf("add", (a, b) => a + b), toolOf("multiply", (a, b) => a * b)];
const messages = [{ role: "user", content: prompt }];
const found = {};
for (const stream of [false, true]) {
  calls = [];
  const runner = client.chat.completions.runTools({ model, messages, tools, stream, temperature: 0 });
  found[stream ? "runTools, a stream" : "runTools"] = { answer: await runner.finalContent(), calls };
}
console.log(JSON.stringify(found));
