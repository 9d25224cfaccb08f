// Calls of the npm package `@llamaindex/openai`.
import { OpenAI } from "@llamaindex/openai";

const [baseURL, model, prompt, maxTokens] = process.argv.slice(2);
const chat = new OpenAI({
  model,
  apiKey: "none",
  baseURL,
  temperature: 0,
  maxTokens: Number(maxTokens),
  maxRetries: 0,
});
const messages = [{ role: "user", content: prompt }];
let streamed = "";
for await (const chunk of await chat.chat({ messages, stream: true })) streamed += chunk.delta;
console.log(
  JSON.stringify({
    chat: (await chat.chat({ messages })).message.content,
    "chat of a completion": (await chat.complete({ prompt })).text,
    "chat stream": streamed,
  }),
);
