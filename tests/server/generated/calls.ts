// Calls of a generated client against a real broker, with its answers checked by type and by value.
// A wrong type does not compile; a wrong value ends the program with an error.
import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, operations, paths } from "./penstock.js";

type Schemas = components["schemas"];

// True if two types are the same.
type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
const same = <A, B>(_: Same<A, B>): void => undefined;

const env = (name: string): string => {
  const value = process.env[name];
  assert(value !== undefined, name);
  return value;
};
const clientWith = (key: string) =>
  createClient<paths>({ baseUrl: env("PENSTOCK_URL"), headers: { "X-Api-Key": key } });
const penstock = clientWith(env("PENSTOCK_KEY"));

const QUEUE = "/api/v1/namespaces/{namespace}/queues/{queue}";
const at = (queue: string) => ({ path: { namespace: "default", queue } });

async function publishesWithOptions(): Promise<void> {
  const body: Schemas["NewMessageBody"] = {
    payload: { order: 17 },
    priority: 7,
    headers: { tenant: "acme" },
    key: "customer-7",
    ttl_s: 3600,
    dedup_id: "order-17",
    max_attempts: 2,
  };
  const first = await penstock.POST(`${QUEUE}/messages`, { params: at("orders"), body });
  const second = await penstock.POST(`${QUEUE}/messages`, { params: at("orders"), body });
  assert(first.data && second.data);
  same<typeof second.data.duplicate, boolean | undefined>(true);
  assert.equal(second.data.duplicate, true);
  assert.equal(second.data.id, first.data.id);
}

async function publishesBatches(): Promise<void> {
  const { data, response } = await penstock.POST(`${QUEUE}/messages/batch`, {
    params: at("orders"),
    body: [{ payload: "second" }, { payload_b64: "aGVsbG8=" }, { payload: null, delay_s: 3600 }],
  });
  assert.equal(response.status, 201);
  assert.equal(data?.messages.length, 3);
}

async function publishesBytes(): Promise<void> {
  const { data } = await penstock.POST(`${QUEUE}/messages`, {
    params: { ...at("pictures"), query: { priority: 3 } },
    body: "\u0000picture",
    bodySerializer: (body) => body as string,
    headers: { "Content-Type": "application/octet-stream", "Penstock-H-Shop": "north" },
  });
  assert(data);
  const shown = await penstock.GET("/api/v1/messages/{id}", {
    params: { path: { id: data.id }, query: { payload: "b64" } },
  });
  assert.equal(shown.data?.payload_b64, Buffer.from("\u0000picture").toString("base64"));
  assert.deepEqual(shown.data.headers, { shop: "north" });
}

async function browses(): Promise<void> {
  const found: Schemas["Listed"][] = [];
  let cursor: string | undefined;
  do {
    const query: NonNullable<operations["browse_messages"]["parameters"]["query"]> =
      cursor === undefined ? { limit: 3 } : { limit: 3, cursor };
    const page = await penstock.GET(`${QUEUE}/messages`, { params: { ...at("orders"), query } });
    assert(page.data);
    found.push(...page.data.messages);
    cursor = page.data.cursor;
  } while (cursor !== undefined);
  assert.deepEqual(found.map((one) => one.state), ["ready", "ready", "ready", "scheduled"]);
  assert.deepEqual(found.map((one) => one.payload), [{ order: 17 }, "second", undefined, null]);
  const exported = await penstock.GET(`${QUEUE}/messages/export`, {
    params: { ...at("orders"), query: { state: "ready" } },
    parseAs: "text",
  });
  assert(exported.data);
  const lines = exported.data.trim().split("\n").map((line) => JSON.parse(line) as Schemas["Listed"]);
  assert.deepEqual(lines.map((one) => one.seq), found.slice(0, 3).map((one) => one.seq));
}

async function lease(queue: string, max: number): Promise<Schemas["Leased"][]> {
  const { data, error } = await penstock.POST(`${QUEUE}/lease`, {
    params: at(queue),
    body: { max, lease_s: 60, wait_s: 5, holder: "typescript" },
  });
  assert(data, JSON.stringify(error));
  return data.messages;
}

async function leasesAndSettles(): Promise<void> {
  const [first, second, third] = await lease("orders", 3);
  assert(first && second && third);
  assert.deepEqual(first.payload, { order: 17 });
  assert.deepEqual(first.headers, { tenant: "acme" });
  assert.equal(first.key, "customer-7");
  assert.equal(third.payload_b64, "aGVsbG8=");
  const { data } = await penstock.POST("/api/v1/settle", {
    body: {
      ack: [second.receipt, { receipt: third.receipt, emit: [{ payload: "next" }] }],
      nack: [{ receipt: first.receipt, reason: "printer on fire", delay_s: 0 }],
    },
  });
  assert.deepEqual(data?.results.map((one) => one.status), ["done", "done", "done"]);
  assert.equal(data.results[1]?.ids?.length, 1);

  const [again, next] = await lease("orders", 2);
  assert(again && next);
  assert.equal(again.id, first.id);
  assert.equal(again.attempt, 2);
  const kept = await penstock.POST("/api/v1/settle", {
    body: { extend: [{ receipt: again.receipt, lease_s: 120 }], release: [next.receipt] },
  });
  assert.equal(kept.data?.results.length, 2);

  const failed = await penstock.POST("/api/v1/settle", { body: { nack: [again.receipt] } });
  assert.equal(failed.data?.results[0]?.status, "done"); // its second attempt: it is dead now
  const dead = await penstock.GET(`${QUEUE}/dead`, { params: at("orders") });
  assert.deepEqual(dead.data?.messages.map((one) => one.id), [first.id]);
  const history = await penstock.GET("/api/v1/messages/{id}/history", {
    params: { path: { id: first.id } },
  });
  assert.equal(history.data?.events.find((one) => one.event === "nacked")?.reason, "printer on fire");

  const { error } = await penstock.POST("/api/v1/settle", { body: { ack: [again.receipt] } });
  assert.equal(error?.status, 410);
  assert.equal(error.code, "receipt_invalid");
  assert.equal(error.results?.[0]?.status, "gone");
}

async function readsStatistics(): Promise<void> {
  const { data } = await penstock.GET(QUEUE, { params: at("orders") });
  assert(data?.stats);
  same<typeof data.stats.ready, number>(true);
  assert.equal(data.stats.acked, 2);
  assert.equal(data.stats.dead, 1);
  assert.equal(data.stats.scheduled, 1);
  assert.equal(data.stats.groups["main"]?.ready, 1);
  assert.equal(data.settings.lease_s, 30);
  const metrics = await penstock.GET("/metrics", { parseAs: "text" });
  assert.match(metrics.data ?? "", /^penstock_/m);
}

async function handlesErrors(): Promise<void> {
  const missing = await penstock.GET(QUEUE, { params: at("nowhere") });
  assert.equal(missing.data, undefined);
  assert(missing.error?.status === 404);
  same<typeof missing.error, Schemas["Problem404"]>(true);
  assert.equal(missing.error.code, "no_such_queue");

  const namespace = { body: { name: "shop", defaults: { lease_s: 60 } } };
  const made = await penstock.POST("/api/v1/namespaces", namespace);
  assert.equal(made.data?.defaults.lease_s, 60);
  const twice = await penstock.POST("/api/v1/namespaces", namespace);
  assert(twice.error?.status === 409);
  same<typeof twice.error.code, "already_exists" | "not_empty">(true);
  assert.equal(twice.error.code, "already_exists");

  const body = { max_payload_bytes: 10, max_messages: 1 };
  const small = await penstock.PUT(QUEUE, { params: at("small"), body });
  assert.equal(small.data?.settings.max_messages, 1);
  const publish = (payload: unknown) =>
    penstock.POST(`${QUEUE}/messages`, { params: at("small"), body: { payload } });
  const large = await publish("more than ten bytes");
  assert.equal(large.error?.status, 413);
  assert.equal(large.error.code, "payload_too_large");
  assert((await publish(1)).data);
  const full = await publish(2);
  assert(full.error?.status === 429);
  same<typeof full.error.retry_after_s, number>(true);
  assert.equal(full.error.code, "queue_full");
  assert(Number(full.response.headers.get("Retry-After")) >= 1);

  const unknown = await clientWith("psk_wrong").GET(QUEUE, { params: at("orders") });
  assert(unknown.error?.status === 401);
  assert.equal(unknown.error.code, "key_refused");
  const reader = clientWith(env("PENSTOCK_READ_KEY"));
  const refused = await reader.POST(`${QUEUE}/purge`, { params: at("orders") });
  assert(refused.error?.status === 403);
  assert.equal(refused.error.code, "not_allowed");
  assert((await reader.GET(QUEUE, { params: at("orders") })).data);

  const wrong = await penstock.POST(`${QUEUE}/messages`, {
    params: at("orders"),
    body: { payload: 1, priority: 12 },
  });
  assert(wrong.error?.status === 400);
  assert.equal(wrong.error.code, "invalid_input");
  assert.match(wrong.error.detail, /priority/);
}

// What must not compile.
function refusesMistakes(): void {
  // @ts-expect-error: not a number
  penstock.POST(`${QUEUE}/messages`, { params: at("orders"), body: { payload: 1, priority: "3" } });
  // @ts-expect-error: the path has no parameters
  penstock.POST(`${QUEUE}/lease`, { body: { max: 1 } });
  // @ts-expect-error: not a state
  penstock.GET(`${QUEUE}/messages`, { params: { ...at("orders"), query: { state: "lost" } } });
}
assert.equal(typeof refusesMistakes, "function"); // it is not called

for (const step of [
  publishesWithOptions,
  publishesBatches,
  publishesBytes,
  browses,
  leasesAndSettles,
  readsStatistics,
  handlesErrors,
]) {
  await step();
  console.log(step.name);
}
