// A loop of tools with the npm package `@anthropic-ai/sdk`: its own runner, plain and streamed.
import Anthropic from "@anthropic-ai/sdk";

const [baseURL, model, prompt] = process.argv.slice(2);
// Its addresses begin with /v1 themselves.
const client = new Anthropic({ baseURL: baseURL.replace(/\/v1$/, ""), apiKey: "none", maxRetries: 0 });
let calls = [];
function toolOf(name, compute) {
  return {
    name,
    description: `To ${name} two numbers.`,
    input_schema: {
      type: "object",
      properties: { a: { type: "integer" }, b: { type: "integer" } },
      required: ["a", "b"],
      additionalProperties: false,
    },
    run: ({ a, b }) => {
      calls.push([name, a, b]);
      return String(compute(a, b));
    },
    parse: (input) => input,
  };
}
const tools = [toolOf("add", (a, b) => a + b), toolOf("multiply", (a, b) => a * b)];
const messages = [{ role: "user", content: prompt }];
const found = {};
for (const stream of [false, true]) {
  calls = [];
  const runner = client.beta.messages.toolRunner({ model, messages, tools, stream, max_tokens: 400, temperature: 0 });
  const final = await runner.runUntilDone();
  const answer = final.content.map((block) => block.text ?? "").join("");
  found[stream ? "runner, a stream" : "runner"] = { answer, calls };
}
console.log(JSON.stringify(found));
