// Loops of tools with the Vercel AI SDK: streamText and generateText, by two of its providers.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const [baseURL, model, prompt] = process.argv.slice(2);
const compatible = createOpenAICompatible({ name: "tailrace", baseURL, apiKey: "none" });
const openai = createOpenAI({ baseURL, apiKey: "none" });
const inputSchema = jsonSchema({
  type: "object",
  properties: { a: { type: "integer" }, b: { type: "integer" } },
  required: ["a", "b"],
  additionalProperties: false,
});
let calls = [];
function toolOf(name, compute) {
  return tool({
    description: `To ${name} two numbers.`,
    inputSchema,
    execute: async ({ a, b }) => {
      calls.push([name, a, b]);
      return String(compute(a, b));
    },
  });
}
const tools = { add: toolOf("add", (a, b) => a + b), multiply: toolOf("multiply", (a, b) => a * b) };
const models = {
  "openai-compatible": compatible.chatModel(model),
  "chat of openai": openai.chat(model),
  "responses of openai": openai.responses(model),
  "openai as it comes": openai(model), // which sends ids of stored items
};
const found = {};
for (const [name, each] of Object.entries(models)) {
  const wish = { model: each, tools, prompt, temperature: 0, maxRetries: 0, stopWhen: stepCountIs(5) };
  if (name !== "openai as it comes") wish.providerOptions = { openai: { store: false } };
  const answers = {
    [name]: async () => (await generateText(wish)).text,
    [`${name}, a stream`]: async () => await streamText(wish).text,
  };
  for (const [kind, answer] of Object.entries(answers)) {
    calls = [];
    found[kind] = { answer: await answer(), calls };
  }
}
console.log(JSON.stringify(found));
