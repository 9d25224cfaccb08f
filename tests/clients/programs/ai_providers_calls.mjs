// Calls of the Vercel AI SDK by its providers for Anthropic's Messages and for Open Responses.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenResponses } from "@ai-sdk/open-responses";
import { generateText, streamText } from "ai";

const [baseURL, model, prompt, maxTokens] = process.argv.slice(2);
const common = { prompt, temperature: 0, maxOutputTokens: Number(maxTokens), maxRetries: 0 };
const models = {
  "chat of anthropic": createAnthropic({ baseURL, apiKey: "none" })(model),
  "chat of open-responses": createOpenResponses({ name: "tailrace", url: `${baseURL}/responses`, apiKey: "none" })(
    model,
  ),
};
const texts = {};
for (const [name, each] of Object.entries(models)) {
  texts[name] = (await generateText({ ...common, model: each })).text;
  texts[`${name}, a stream`] = await streamText({ ...common, model: each }).text;
}
console.log(JSON.stringify(texts));
