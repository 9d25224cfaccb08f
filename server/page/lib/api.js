/**
 * Calls of the server's API. The key is kept in the tab's session storage and sent in a header; it
 * is never part of an address.
 */
import { signal } from "./html.js";

/** The server's address, whatever path a proxy shows it under. */
export const BASE = new URL("../../", import.meta.url);

const KEY = "tailrace.key";

/** The API key; empty where none was given. */
export const key = signal(sessionStorage.getItem(KEY) ?? "");
/** Whether the server has refused a request for want of a valid key. */
export const keyWanted = signal(false);

/** @param {string} value */
export function setKey(value) {
  key.value = value;
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
  keyWanted.value = false;
}

/** An error reply of the server, or none at all (status 0). */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {string} message
   * @param {string | null} [param] the field that the error is about
   */
  constructor(status, message, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

/**
 * A request; raises `ApiError` unless the reply is a success.
 * @param {string} path
 * @param {{body?: unknown, signal?: AbortSignal, method?: string}} [options]
 * @returns {Promise<Response>}
 */
export async function request(path, { body, signal: abort, method } = {}) {
  /** @type {Record<string, string>} */
  const headers = {};
  if (key.value) headers.authorization = `Bearer ${key.value}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let reply;
  try {
    reply = await fetch(new URL(path, BASE), {
      method: method ?? (body === undefined ? "GET" : "POST"),
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: abort,
      cache: "no-store",
      credentials: "same-origin",
    });
  } catch (error) {
    if (abort?.aborted) throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
  if (!reply.ok) throw await refusal(reply);
  return reply;
}

/** @param {Response} reply */
async function refusal(reply) {
  if (reply.status === 401) keyWanted.value = true;
  try {
    const { error } = await reply.json();
    return new ApiError(reply.status, error.message, error.param);
  } catch {
    return new ApiError(reply.status, `The server answered ${reply.status}.`);
  }
}

/**
 * JSON with its objects' order kept: a key of digits alone ("12", a token's text) would be moved to
 * the front by the language, so it is parsed with a NUL before it. `plainKey` takes that off.
 * @param {string} text
 */
export function parseJson(text) {
  return JSON.parse(text.replace(/(?<!\\)"(\d+)":/g, '"\\u0000$1":'));
}

/** @param {string} name */
export const plainKey = (name) => (name.charCodeAt(0) === 0 ? name.slice(1) : name);

/**
 * @param {string} path
 * @param {unknown} [body]
 * @param {AbortSignal} [abort]
 */
export async function json(path, body, abort) {
  return parseJson(await (await request(path, { body, signal: abort })).text());
}
