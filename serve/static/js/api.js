// Requests of the HTTP API that the pages use. Every error is a Problem with a fix.

const KEY = "diffretriever-api-key";

/** A rejected or failed request (RFC 9457). */
export class Problem extends Error {
  constructor({ title, status = 0, detail = "", field = null, fix = "" }) {
    super(detail || title);
    Object.assign(this, { title, status, detail, field, fix });
  }
}

/** Store the key until this tab is closed. */
export function keepKey(key) {
  sessionStorage.setItem(KEY, key);
}

async function send(path, body, signal) {
  const headers = { accept: "application/json, application/problem+json" };
  const key = sessionStorage.getItem(KEY);
  if (key) headers.authorization = `Bearer ${key}`;
  if (body) headers["content-type"] = "application/json";
  const method = body ? "POST" : "GET";
  let response;
  try {
    response = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({
      title: "No response from the server",
      detail: `The request failed: ${error.message}`,
      fix: "Check that the server is running and that you are online, then try again.",
    });
  }
  const content = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return null;
  });
  if (response.ok && content) return content;
  if (content && content.title) throw new Problem({ ...content, status: response.status });
  throw new Problem({
    title: response.status === 503 || response.status === 429 ? "The server is busy" : "Unexpected response",
    status: response.status,
    detail: `The response has status ${response.status} and no readable JSON.`,
    fix: "Wait a moment and try again. If that fails too, check the server's log.",
  });
}

/** Return the description of the index. */
export function fetchIndex() {
  return send("index");
}

/** Rank passages for one query; `budget` is a number, "adaptive" or null. */
export function search({ q, mode, budget, collection, filter, k, explain, words = 0 }, signal) {
  const within = collection ? `collection = '${collection.replaceAll("'", "''")}'` : null;
  const condition = filter && within ? `(${filter}) AND ${within}` : filter || within;
  return send("search", { query: q, k, mode, budget, filter: condition, explain, words }, signal);
}
