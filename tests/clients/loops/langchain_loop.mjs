// An agent of the npm package `langchain`, over chats and over Responses.
import { ChatOpenAI } from "@langchain/openai";
import { createAgent, tool } from "langchain";
import { z } from "zod";

const [baseURL, model, prompt] = process.argv.slice(2);
let calls = [];
function toolOf(name, compute) {
  return tool(
    async ({ a, b }) => {
      calls.push([name, a, b]);
      return String(compute(a, b));
    },
    {
      name,
      description: `To ${name} two numbers.`,
      schema: z.object({ a: z.number().int(), b: z.number().int() }),
    },
  );
}
const tools = [toolOf("add", (a, b) => a + b), toolOf("multiply", (a, b) => a * b)];
const common = { model, apiKey: "none", temperature: 0, maxRetries: 0, configuration: { baseURL } };
// Streams are counted by tables that it fetches from a site of its own, so there are none here.
const models = {
  chat: new ChatOpenAI(common),
  responses: new ChatOpenAI({ ...common, useResponsesApi: true }),
};
const found = {};
for (const [name, each] of Object.entries(models)) {
  calls = [];
  const { messages } = await createAgent({ model: each, tools }).invoke({
    messages: [{ role: "user", content: prompt }],
  });
  found[name] = { answer: messages.at(-1).text, calls };
}
console.log(JSON.stringify(found));
