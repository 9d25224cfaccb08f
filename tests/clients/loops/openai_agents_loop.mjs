// An agent of the npm package `@openai/agents`, over chats and over Responses, plain and streamed.
import {
  Agent,
  OpenAIChatCompletionsModel,
  OpenAIResponsesModel,
  run,
  setTracingDisabled,
  tool,
} from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";

const [baseURL, model, prompt] = process.argv.slice(2);
setTracingDisabled(true);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
let calls = [];
function toolOf(name, compute) {
  return tool({
    name,
    description: `To ${name} two numbers.`,
    parameters: z.object({ a: z.number().int(), b: z.number().int() }),
    execute: async ({ a, b }) => {
      calls.push([name, a, b]);
      return String(compute(a, b));
    },
  });
}
const tools = [toolOf("add", (a, b) => a + b), toolOf("multiply", (a, b) => a * b)];
const models = {
  chat: new OpenAIChatCompletionsModel(client, model),
  responses: new OpenAIResponsesModel(client, model),
};
const found = {};
for (const [name, each] of Object.entries(models)) {
  const agent = new Agent({ name: "calculator", model: each, modelSettings: { temperature: 0 }, tools });
  calls = [];
  found[name] = { answer: (await run(agent, prompt)).finalOutput, calls };
  calls = [];
  const streamed = await run(agent, prompt, { stream: true });
  for await (const event of streamed) void event;
  await streamed.completed;
  found[`${name}, a stream`] = { answer: streamed.finalOutput, calls };
}
console.log(JSON.stringify(found));
