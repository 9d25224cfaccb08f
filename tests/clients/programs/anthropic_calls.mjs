// Calls of the npm package `@anthropic-ai/sdk`.
import Anthropic from "@anthropic-ai/sdk";

const [baseURL, model, prompt, maxTokens] = process.argv.slice(2);
// Its addresses begin with /v1 themselves.
const client = new Anthropic({ baseURL: baseURL.replace(/\/v1$/, ""), apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: prompt }];
const common = { model, messages, max_tokens: Number(maxTokens), temperature: 0 };
const textOf = (message) =>
  message.content
    .filter((block) => block.type === "text")
    .map((block) => block.text)
    .join("");

const listed = [];
for await (const each of client.models.list()) listed.push([each.type, each.id]);
if (JSON.stringify(listed) !== JSON.stringify([["model", model]])) throw new Error(JSON.stringify(listed));
const counted = await client.messages.countTokens({ model, messages });
const message = await client.messages.create(common);
const { input_tokens, cache_read_input_tokens } = message.usage;
if (counted.input_tokens !== input_tokens + (cache_read_input_tokens ?? 0)) throw new Error("tokens");
const stream = client.messages.stream(common);
let streamed = "";
stream.on("text", (text) => {
  streamed += text;
});
const final = await stream.finalMessage();
console.log(
  JSON.stringify({ chat: textOf(message), "chat stream": streamed, "chat stream, gathered": textOf(final) }),
);
