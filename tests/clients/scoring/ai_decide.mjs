// experimental_decide and rerank of the Vercel AI SDK, by its providers for OpenAI and Cohere.
import { createCohere } from "@ai-sdk/cohere";
import { createOpenAI } from "@ai-sdk/openai";
import { experimental_decide as decide, rerank } from "ai";

const [baseURL, model, text] = process.argv.slice(2);
const { state, angry, team, teams, urgency, levels, query, documents } = JSON.parse(text);
const { answers } = await decide({
  model: createOpenAI({ baseURL, apiKey: "none" }).decisionModel(model),
  state,
  questions: {
    angry: { type: "boolean", instructions: angry },
    team: { type: "choice", instructions: team, criteria: teams },
    urgency: { type: "score", instructions: urgency, criteria: levels },
  },
  maxRetries: 0,
});
const { ranking } = await rerank({
  model: createCohere({ baseURL, apiKey: "none" }).reranking(model),
  query,
  documents,
  maxRetries: 0,
});
console.log(
  JSON.stringify({
    "decide, levels by number": {
      angry: answers.angry.probability,
      team: answers.team.probabilities,
      urgency: Object.values(answers.urgency.probabilities),
    },
    rerank: ranking.map(({ originalIndex, score }) => [originalIndex, score]),
  }),
);
