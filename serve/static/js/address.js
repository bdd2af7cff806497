// The search in the page's URL, so that it can be linked to and the browser's Back works.

/** Return query, mode, budget, collection and filter of the URL; a prefix selects one of two sides. */
export function readAddress(prefix = "") {
  const parameters = new URLSearchParams(location.search);
  const read = (name) => parameters.get(`${prefix}${name}`);
  const [mode, budget, collection, filter] = ["mode", "budget", "collection", "filter"].map(read);
  return { q: parameters.get("q") ?? "", mode, budget, collection, filter };
}

/** Return the query string for a query and configurations by prefix. */
export function addressOf(q, configurations) {
  const parameters = new URLSearchParams();
  if (q) parameters.set("q", q);
  for (const [prefix, configuration] of Object.entries(configurations)) {
    for (const [key, value] of Object.entries(configuration)) {
      if (value !== null) parameters.set(`${prefix}${key}`, value);
    }
  }
  return `?${parameters}`;
}

/** Write a query string into the URL, as a new entry of the history if it differs. */
export function writeAddress(query) {
  if (query !== location.search) history.pushState(null, "", query);
}
