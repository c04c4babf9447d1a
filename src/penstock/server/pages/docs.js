// Shows the calls of /openapi.json with their fields and examples, and lets one try them.
// Text is set as text, never as markup.
"use strict";

const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

const pretty = (value) => JSON.stringify(value, null, 2);

function resolved(schema, all) {
  return schema?.$ref ? all[schema.$ref.split("/").pop()] : schema;
}

// The forms that a value may have, null left out: leaving a field out says the same.
function forms(schema, all) {
  const found = resolved(schema, all) || {};
  return (found.anyOf || [found]).map((one) => resolved(one, all)).filter((one) => one.type !== "null");
}

function typeName(schema, all) {
  const names = forms(schema, all).map((one) => {
    if (one.enum) return one.enum.map((value) => JSON.stringify(value)).join(" | ");
    if (one.type === "array") return `list of ${typeName(one.items, all)}`;
    if (one.properties) return "object";
    return one.type || "any JSON";
  });
  return [...new Set(names)].join(" | ");
}

function limits(schema, all) {
  const said = [];
  for (const one of forms(schema, all)) {
    if (one.minimum !== undefined) said.push(`at least ${one.minimum}`);
    if (one.exclusiveMinimum !== undefined) said.push(`more than ${one.exclusiveMinimum}`);
    if (one.maximum !== undefined) said.push(`at most ${one.maximum}`);
    if (one.maxLength !== undefined) said.push(`at most ${one.maxLength} characters`);
  }
  return said.length ? `(${said.join(", ")})` : "";
}

// The fields of a schema and of the objects in it, as rows; `messages[].id` is in a list.
function fields(schema, all, prefix = "", depth = 0) {
  const rows = [];
  // One message and a list of them have the same fields: they are shown once.
  const add = (more) => rows.push(...more.filter((row) => !rows.some((old) => old.path === row.path)));
  for (const one of forms(schema, all)) {
    if (one.type === "array" && depth < 4) add(fields(one.items, all, prefix && `${prefix}[]`, depth + 1));
    for (const [name, inner] of Object.entries(one.properties || {})) {
      const path = prefix ? `${prefix}.${name}` : name;
      add([{
        path,
        type: typeName(inner, all),
        needed: (one.required || []).includes(name),
        meaning: [inner.description, limits(inner, all)].filter(Boolean).join(" "),
      }]);
      if (depth < 4) add(fields(inner, all, path, depth + 1));
    }
  }
  return rows;
}

function fieldTable(schema, all, { isRequest }) {
  const rows = fields(schema, all);
  if (!rows.length) return [];
  const heads = ["field", "type", isRequest ? "needed" : "always there", "meaning"];
  const body = rows.map((row) => make("tr", {},
    make("td", {}, make("code", { textContent: row.path })),
    make("td", { textContent: row.type }),
    make("td", { textContent: row.needed ? "yes" : "" }),
    make("td", { textContent: row.meaning })));
  const head = make("tr", {}, ...heads.map((text) => make("th", { textContent: text })));
  const table = make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
  return [make("div", { className: "fields" }, table)];
}

function urlOf(path, operation, form) {
  const query = new URLSearchParams();
  let url = path;
  for (const parameter of operation.parameters) {
    const value = form.elements[parameter.name].value;
    if (parameter.in === "path") url = url.replace(`{${parameter.name}}`, encodeURIComponent(value));
    else if (value !== "") query.set(parameter.name, value);
  }
  return query.size ? `${url}?${query}` : url;
}

async function send(method, path, operation, form, output) {
  const headers = {};
  const key = document.getElementById("key").value;
  if (key) headers["X-Api-Key"] = key;
  const body = form.elements.body ? form.elements.body.value : "";
  if (body) headers["Content-Type"] = "application/json";
  output.hidden = false;
  output.textContent = "…";
  try {
    const answer = await fetch(urlOf(path, operation, form), {
      method: method.toUpperCase(), headers, body: body || undefined,
    });
    const text = await answer.text();
    let shown = text;
    try { shown = pretty(JSON.parse(text)); } catch { /* not JSON: as it is */ }
    output.textContent = `${answer.status} ${answer.statusText}\n${shown}`;
  } catch (error) {
    output.textContent = `no answer: ${error.message}`;
  }
}

function requestPart(operation) {
  const parts = [];
  for (const parameter of operation.parameters) {
    const input = make("input", { name: parameter.name, required: parameter.in === "path" });
    input.title = parameter.description;
    input.placeholder = parameter.description;
    if (parameter.name === "namespace") input.value = "default";
    parts.push(make("label", {}, parameter.name, input));
  }
  const json = operation.requestBody?.content["application/json"];
  if (json) {
    const text = pretty(json.example ?? {});
    const lines = text.split("\n").length;
    parts.push(make("textarea", { name: "body", value: text, spellcheck: false, rows: lines }));
  }
  return parts;
}

function answerPart(operation, all) {
  const parts = [];
  for (const [status, answer] of Object.entries(operation.responses)) {
    if (!status.startsWith("2")) continue;
    parts.push(make("h3", { textContent: `Answer: ${status} ${answer.description}` }));
    for (const [type, { schema, example }] of Object.entries(answer.content || {})) {
      if (example === undefined) parts.push(make("p", { className: "note", textContent: type }));
      else parts.push(make("pre", { textContent: pretty(example) }));
      parts.push(...fieldTable(schema, all, { isRequest: false }));
    }
  }
  const others = Object.keys(operation.responses).filter((status) => !status.startsWith("2"));
  parts.push(make("p", {
    className: "note",
    textContent: `Else a problem (application/problem+json, RFC 9457): ${others.join(", ")}.`,
  }));
  return parts;
}

function call(path, method, operation, schemas) {
  const output = make("pre", { hidden: true });
  const json = operation.requestBody?.content["application/json"];
  const form = make("form", {},
    make("p", { className: "note", textContent: (operation.description || "").replaceAll("`", "") }),
    ...requestPart(operation),
    make("button", { textContent: "Try it" }), output,
    ...(json ? fieldTable(json.schema, schemas, { isRequest: true }) : []),
    ...answerPart(operation, schemas));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(method, path, operation, form, output);
  });
  const head = make("summary", {},
    make("span", { className: "method", textContent: method.toUpperCase() }),
    make("code", { textContent: path }),
    make("span", { textContent: operation.summary }));
  return make("details", { id: operation.operationId }, head, form);
}

async function show() {
  const description = await (await fetch("/openapi.json")).json();
  document.getElementById("about").textContent =
    `${description.info.title} ${description.info.version}. ${description.info.description}`;
  const calls = document.getElementById("calls");
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      calls.append(call(path, method, operation, description.components.schemas));
    }
  }
  document.getElementById("filter").addEventListener("input", (event) => {
    const wanted = event.target.value.toLowerCase();
    for (const item of calls.children) {
      item.hidden = !item.firstChild.textContent.toLowerCase().includes(wanted);
    }
  });
  const chosen = document.getElementById(location.hash.slice(1));
  if (chosen) {
    chosen.open = true;
    chosen.scrollIntoView();
  }
}

show();
