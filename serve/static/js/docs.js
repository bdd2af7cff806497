// The page of the HTTP API, made from openapi.json; it loads nothing from other sites.

import { byId, el } from "./dom.js";

const JSON_TYPES = ["application/json", "application/problem+json"];

function pretty(value) {
  return el("pre", { tabindex: 0 }, JSON.stringify(value, null, 2));
}

/** Return the schema that a reference names, or the schema itself. */
function resolved(schema, document_) {
  return schema.$ref ? document_.components.schemas[schema.$ref.split("/").pop()] : schema;
}

function typeName(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(typeName).join(" or ");
  if (schema.enum) return schema.enum.join(", ");
  if (schema.const !== undefined) return String(schema.const);
  if (schema.type === "array") return `list of ${typeName(schema.items || {})}`;
  return schema.type || "any";
}

function fields(schema) {
  const list = el("dl");
  for (const [name, field] of Object.entries(schema.properties || {})) {
    const need = (schema.required || []).includes(name) ? ", required" : "";
    list.append(el("dt", {}, `${name}: ${typeName(field)}${need}`));
    if (field.description) list.append(el("dd", {}, field.description));
  }
  return list;
}

function content(described) {
  const type = JSON_TYPES.find((each) => described.content && described.content[each]);
  return type ? described.content[type] : null;
}

function examplesOf(body) {
  const named = Object.values(body.examples || {});
  return body.example === undefined ? named : [...named, { summary: "Example", value: body.example }];
}

function curl(method, path, body) {
  const here = new URL(".", document.baseURI).href.replace(/\/$/, "");
  const lines = [`curl ${method === "get" ? "" : `-X ${method.toUpperCase()} `}'${here}${path}'`];
  if (body) lines.push("-H 'content-type: application/json'", `-d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`);
  return el("pre", { tabindex: 0 }, lines.join(" \\\n  "));
}

function requestOf(method, path, operation, document_) {
  const url = (operation.parameters || []).reduce((text, each) => {
    const example = (each.schema.examples || each.examples || ["ID"])[0];
    return text.replace(`{${each.name}}`, example);
  }, path);
  const body = operation.requestBody && content(operation.requestBody);
  if (!body) return [curl(method, url)];
  const requests = examplesOf(body).flatMap((each) => [el("h4", {}, each.summary), curl(method, url, each.value)]);
  return [...requests, el("h4", {}, "Fields of the body"), fields(resolved(body.schema, document_))];
}

/** Return the names of the schemas that a schema refers to, each once, itself first. */
function schemaNames(schema, document_, names = new Set()) {
  const references = JSON.stringify(schema).matchAll(/"#\/components\/schemas\/([^"]+)"/g);
  for (const [, name] of references) {
    if (!names.has(name)) schemaNames(document_.components.schemas[name], document_, names.add(name));
  }
  return names;
}

/** Return the fields of a response's schema and of those that it refers to. */
function responseFields(schema, document_) {
  return [...schemaNames(schema, document_)].flatMap((name) => {
    const described = document_.components.schemas[name];
    return described.properties ? [el("h5", {}, name), fields(described)] : [];
  });
}

function responsesOf(operation, document_) {
  return Object.entries(operation.responses).flatMap(([status, described]) => {
    const body = content(described);
    const title = el("h4", {}, `${status}: ${described.description}`);
    const examples = body ? examplesOf(body).map((each) => pretty(each.value)) : [];
    return [title, ...examples, ...(body && !examples.length ? responseFields(body.schema, document_) : [])];
  });
}

function operationOf(method, path, operation, document_) {
  const title = el("code", {}, `${method.toUpperCase()} ${path}`);
  const keys = operation.security ? [el("p", {}, "If the server has API keys, send one in the header Authorization: Bearer KEY")] : [];
  return el(
    "details",
    { class: "operation" },
    el("summary", {}, title, ` ${operation.description.split("\n")[0]}`),
    el("div", {}, ...keys, ...requestOf(method, path, operation, document_), ...responsesOf(operation, document_)),
  );
}

function groupOf(tag, document_) {
  const operations = Object.entries(document_.paths).flatMap(([path, methods]) =>
    Object.entries(methods)
      .filter(([, operation]) => (operation.tags || []).includes(tag.name))
      .map(([method, operation]) => operationOf(method, path, operation, document_)),
  );
  const title = el("h2", {}, tag.name[0].toUpperCase() + tag.name.slice(1));
  return el("section", { class: "group" }, title, el("p", {}, tag.description), ...operations);
}

async function show() {
  const response = await fetch("openapi.json");
  if (!response.ok) throw new Error(`status ${response.status}`);
  const document_ = await response.json();
  byId("summary").textContent = document_.info.summary;
  byId("operations").append(...document_.tags.map((tag) => groupOf(tag, document_)));
}

show().catch((error) => {
  byId("status").textContent = `openapi.json cannot be loaded (${error.message}). Reload the page in a moment.`;
});
