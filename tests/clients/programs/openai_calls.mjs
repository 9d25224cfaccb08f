// Calls of the npm package `openai`.
import OpenAI from "openai";

const [baseURL, model, prompt, maxTokens] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const common = { model, temperature: 0, max_tokens: Number(maxTokens) };
const messages = [{ role: "user", content: prompt }];

const completion = await client.completions.create({ ...common, prompt });
let completionStream = "";
for await (const chunk of await client.completions.create({ ...common, prompt, stream: true })) {
  completionStream += chunk.choices[0]?.text ?? "";
}
const chat = await client.chat.completions.create({ ...common, messages });
let chatStream = "";
for await (const chunk of await client.chat.completions.create({ ...common, messages, stream: true })) {
  chatStream += chunk.choices[0]?.delta?.content ?? "";
}
const runner = client.chat.completions.stream({ ...common, messages });
console.log(
  JSON.stringify({
    completion: completion.choices[0].text,
    "completion stream": completionStream,
    chat: chat.choices[0].message.content,
    "chat stream": chatStream,
    "chat stream, gathered": (await runner.finalChatCompletion()).choices[0].message.content,
  }),
);
