// Calls of the npm package `@huggingface/inference`.
import { InferenceClient } from "@huggingface/inference";

const [baseURL, model, prompt, maxTokens] = process.argv.slice(2);
const client = new InferenceClient("none", { endpointUrl: baseURL });
const messages = [{ role: "user", content: prompt }];
const common = { model, messages, temperature: 0, max_tokens: Number(maxTokens) };
const chat = await client.chatCompletion(common);
let streamed = "";
for await (const chunk of client.chatCompletionStream(common)) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
}
const schema = {
  type: "object",
  properties: { kind: { enum: ["function", "class"] }, good: { type: "boolean" } },
  required: ["kind", "good"],
  additionalProperties: false,
};
const structured = await client.chatCompletion({
  ...common,
  max_tokens: 200,
  response_format: { type: "json_schema", json_schema: { name: "answer", schema, strict: true } },
});
const found = JSON.parse(structured.choices[0].message.content);
if (typeof found.good !== "boolean") throw new Error(JSON.stringify(found));
console.log(
  JSON.stringify({
    chat: chat.choices[0].message.content,
    "chat stream": streamed,
    structured: JSON.stringify(found),
  }),
);
