// Calls of the Vercel AI SDK, by its provider for compatible servers and by the one for OpenAI.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, Output, streamText } from "ai";

const [baseURL, model, prompt, maxTokens] = process.argv.slice(2);
const common = { prompt, temperature: 0, maxOutputTokens: Number(maxTokens), maxRetries: 0 };
const compatible = createOpenAICompatible({ name: "tailrace", baseURL, apiKey: "none" });
const openai = createOpenAI({ baseURL, apiKey: "none" });
const models = {
  "conversation of openai-compatible": compatible.completionModel(model),
  "conversation of openai": openai.completion(model),
  "chat of openai-compatible": compatible.chatModel(model),
  "chat of openai": openai.chat(model),
};

const texts = {};
for (const [name, each] of Object.entries(models)) {
  texts[name] = (await generateText({ ...common, model: each })).text;
  texts[`${name}, a stream`] = await streamText({ ...common, model: each }).text;
}
const answer = jsonSchema({
  type: "object",
  properties: { kind: { enum: ["function", "class"] }, good: { type: "boolean" } },
  required: ["kind", "good"],
  additionalProperties: false,
});
const parsing = createOpenAICompatible({
  name: "tailrace",
  baseURL,
  apiKey: "none",
  supportsStructuredOutputs: true,
});
for (const [name, each] of Object.entries({ compatible: parsing.chatModel(model), openai: openai.chat(model) })) {
  const wish = { ...common, model: each, maxOutputTokens: 200, output: Output.object({ schema: answer }) };
  texts[`structured of ${name}`] = JSON.stringify((await generateText(wish)).output);
  texts[`structured of ${name}, a stream`] = JSON.stringify(await streamText(wish).output);
}
console.log(JSON.stringify(texts));
