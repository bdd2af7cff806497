// What is asked, in the page's address: a search can be linked to, and the browser's Back works.

/** Read what the address asks: query, and mode, budget, collection and filter with a prefix for one of two sides. */
export function readAddress(prefix = "") {
  const asked = new URLSearchParams(location.search);
  const read = (name) => asked.get(`${prefix}${name}`);
  const [mode, budget, collection, filter] = ["mode", "budget", "collection", "filter"].map(read);
  return { q: asked.get("q") ?? "", mode, budget, collection, filter };
}

/** Return the query string for a query and configurations by prefix. */
export function addressOf(q, configurations) {
  const asked = new URLSearchParams();
  if (q) asked.set("q", q);
  for (const [prefix, configuration] of Object.entries(configurations)) {
    for (const [key, value] of Object.entries(configuration)) {
      if (value !== null) asked.set(`${prefix}${key}`, value);
    }
  }
  return `?${asked}`;
}

/** Put a query string into the address, as a new entry of the history if it is another one. */
export function writeAddress(query) {
  if (query !== location.search) history.pushState(null, "", query);
}
