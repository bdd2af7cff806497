// The service's HTTP interface, as far as the pages use it. Whatever goes wrong is a Problem with a fix.

const KEY = "diffretriever-api-key";

/** What the service refused, or why it could not be asked (RFC 9457). */
export class Problem extends Error {
  constructor({ title, status = 0, detail = "", field = null, fix = "" }) {
    super(detail || title);
    Object.assign(this, { title, status, detail, field, fix });
  }
}

/** Keep the key until this tab is closed. */
export function keepKey(key) {
  sessionStorage.setItem(KEY, key);
}

async function ask(path, body, signal) {
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
      title: "The service does not answer",
      detail: "Nothing came back from it.",
      fix: "See that it is running and that you are online, then try again.",
    });
  }
  const answer = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return null;
  });
  if (response.ok && answer) return answer;
  if (answer && answer.title) throw new Problem({ ...answer, status: response.status });
  throw new Problem({
    title: response.status === 503 || response.status === 429 ? "The service is busy" : "An answer that makes no sense",
    status: response.status,
    detail: `Status ${response.status}, and no word of why.`,
    fix: "Wait a moment and try again.",
  });
}

/** Ask what is served. */
export function askIndex() {
  return ask("index");
}

/** Rank passages for one query; `budget` is a number, "adaptive" or null. */
export function askSearch({ q, mode, budget, collection, filter, k, explain, words = 0 }, signal) {
  const body = { query: q, k, mode, budget, explain, words };
  if (collection) body.filter = { collection };
  if (filter) body.filter = collection ? `(${filter}) AND collection = '${collection.replaceAll("'", "''")}'` : filter;
  return ask("search", body, signal);
}
