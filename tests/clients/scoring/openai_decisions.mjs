// Decisions of the npm package `openai`, and its runner that chooses actions.
import OpenAI from "openai";
import { DecisionsToolRunner } from "openai/helpers/decisions-tool-runner";

const [baseURL, model, text] = process.argv.slice(2);
const { state, angry, team, teams, urgency, levels } = JSON.parse(text);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const decision = await client.decisions.create({
  model,
  input: state,
  questions: [
    { type: "predicate", name: "angry", instructions: angry },
    {
      type: "choice",
      name: "team",
      instructions: team,
      choices: Object.entries(teams).map(([value, description]) => ({ value, description })),
    },
    { type: "score", name: "urgency", instructions: urgency, levels: levels.map((label) => ({ label })) },
  ],
});
const [first, second, third] = decision.answers;
const found = {
  angry: first.probability,
  team: Object.fromEntries(second.probabilities.map((each) => [each.value, each.probability])),
  urgency: third.probabilities.map((each) => each.probability),
};

const left = ["wash", "dry"];
const runner = new DecisionsToolRunner({
  observe: () => `Left: ${left.join(", ") || "nothing"}.`,
  candidates: () => [
    ...left.map((id) => ({
      id,
      description: `to ${id} them`,
      execute: () => void left.splice(left.indexOf(id), 1),
    })),
    { id: "done", description: "Nothing is left.", done: true },
  ],
});
const run = await runner.run(client, { model, input: "Do the dishes." }, { maxSteps: 4 });
if (run.status !== "unverified" || run.completedCandidateIds.length + left.length !== 2) {
  throw new Error(JSON.stringify(run));
}
console.log(JSON.stringify({ decisions: found }));
