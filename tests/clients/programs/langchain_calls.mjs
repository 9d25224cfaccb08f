// Calls of the npm package `@langchain/openai`.
import { ChatOpenAI, OpenAI } from "@langchain/openai";
import { z } from "zod";

const [baseURL, model, prompt, maxTokens] = process.argv.slice(2);
const common = {
  model,
  apiKey: "none",
  temperature: 0,
  maxTokens: Number(maxTokens),
  maxRetries: 0,
  configuration: { baseURL },
};
const texts = {};
const models = {
  completion: new OpenAI(common),
  "chat of completions": new ChatOpenAI(common),
  "chat of responses": new ChatOpenAI({ ...common, useResponsesApi: true }),
};
for (const [name, each] of Object.entries(models)) {
  const said = await each.invoke(prompt);
  texts[name] = said.text ?? said;
  let streamed = "";
  for await (const chunk of await each.stream(prompt)) streamed += chunk.text ?? chunk;
  texts[`${name}, a stream`] = streamed;
}
const answer = z.strictObject({ kind: z.enum(["function", "class"]), good: z.boolean() });
const parsing = new ChatOpenAI({ ...common, maxTokens: 200 });
for (const method of ["jsonSchema", "functionCalling"]) {
  const found = await parsing.withStructuredOutput(answer, { method, name: "answer" }).invoke(prompt);
  texts[`${method} structured`] = JSON.stringify(answer.parse(found));
}
console.log(JSON.stringify(texts));
