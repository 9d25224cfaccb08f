/** Streams of the API, line by line. */
import { ApiError, parseJson, request } from "./api.js";

/**
 * The lines of a reply as they arrive.
 * @param {string} path
 * @param {{body?: unknown, signal?: AbortSignal, method?: string}} options
 * @returns {AsyncGenerator<string>}
 */
export async function* lines(path, options) {
  const reply = await request(path, options);
  const decoder = new TextDecoder();
  const reader = /** @type {ReadableStream<Uint8Array>} */ (reply.body).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const parts = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = /** @type {string} */ (parts.pop());
      yield* parts;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
  if (rest) yield rest;
}

/**
 * The chunks of a stream of server-sent events; raises `ApiError` for an error event.
 * @param {string} path
 * @param {unknown} body
 * @param {AbortSignal} abort
 */
export async function* events(path, body, abort) {
  for await (const line of lines(path, { body, signal: abort })) {
    if (!line.startsWith("data: ")) continue;
    if (line === "data: [DONE]") return;
    const chunk = parseJson(line.slice(6));
    if (chunk.error) throw new ApiError(500, chunk.error.message, chunk.error.param);
    yield chunk;
  }
}
