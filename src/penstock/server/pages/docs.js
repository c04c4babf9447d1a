// Shows the calls of /openapi.json and lets one try them. Text is set as text, never as markup.
"use strict";

const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

// A body to begin with: the fields that must be there, and a payload where there may be one.
function example(schema, all, depth = 0) {
  if (!schema || depth > 6) return null;
  if (schema.$ref) return example(all[schema.$ref.split("/").pop()], all, depth + 1);
  if (schema.anyOf) return example(schema.anyOf[0], all, depth + 1);
  if (schema.default !== undefined && schema.default !== null) return schema.default;
  if (schema.enum) return schema.enum[0];
  if (schema.type === "object" || schema.properties) {
    const made = {};
    for (const [name, inner] of Object.entries(schema.properties || {})) {
      if (name === "payload") made[name] = { hello: "world" };
      else if ((schema.required || []).includes(name)) made[name] = example(inner, all, depth + 1);
    }
    return made;
  }
  return { string: "", integer: 1, number: 1, boolean: false, array: [] }[schema.type] ?? null;
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
    try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not JSON: as it is */ }
    output.textContent = `${answer.status} ${answer.statusText}\n${shown}`;
  } catch (error) {
    output.textContent = `no answer: ${error.message}`;
  }
}

function call(path, method, operation, schemas) {
  const form = make("form");
  const output = make("pre", { hidden: true });
  form.append(make("p", { className: "note", textContent: operation.description || "" }));
  for (const parameter of operation.parameters) {
    const input = make("input", { name: parameter.name, required: parameter.in === "path" });
    input.title = parameter.description;
    input.placeholder = parameter.in === "path" ? "" : parameter.description;
    if (parameter.name === "namespace") input.value = "default";
    form.append(make("label", {}, parameter.name, input));
  }
  const json = operation.requestBody?.content["application/json"];
  if (json) {
    const text = JSON.stringify(example(json.schema, schemas), null, 2);
    form.append(make("textarea", { name: "body", value: text, spellcheck: false }));
  }
  form.append(make("button", { textContent: "Try it" }), output);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(method, path, operation, form, output);
  });
  const head = make("summary", {},
    make("span", { className: "method", textContent: method.toUpperCase() }),
    make("code", { textContent: path }),
    make("span", { textContent: operation.summary }));
  return make("details", {}, head, form);
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
}

show();
