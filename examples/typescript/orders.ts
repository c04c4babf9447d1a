// Publishes, leases and settles orders with a client that is generated from /openapi.json.
import createClient from "openapi-fetch";
import type { components, paths } from "./penstock.js";

type Problem = components["schemas"]["Problem"];

const key = process.env["PENSTOCK_KEY"];
const penstock = createClient<paths>({
  baseUrl: process.env["PENSTOCK_URL"] ?? "http://127.0.0.1:8080",
  headers: key === undefined ? {} : { "X-Api-Key": key },
});
const params = { path: { namespace: "default", queue: "orders" } };

function explain(problem: Problem): string {
  switch (problem.status) {
    case 404:
      return `missing: ${problem.code}`;
    case 429:
    case 503:
    case 507:
      return `try again in ${problem.retry_after_s} s: ${problem.code}`;
    default:
      return `${problem.code}: ${problem.detail}`;
  }
}

const published = await penstock.POST("/api/v1/namespaces/{namespace}/queues/{queue}/messages", {
  params,
  body: { payload: { order: 17 }, priority: 7, dedup_id: "order-17" },
});
if (published.error) throw new Error(explain(published.error));

const leased = await penstock.POST("/api/v1/namespaces/{namespace}/queues/{queue}/lease", {
  params,
  body: { max: 10, wait_s: 5 },
});
if (leased.error) throw new Error(explain(leased.error));
for (const message of leased.data.messages) {
  console.log(message.priority, message.attempt, JSON.stringify(message.payload));
}

const settled = await penstock.POST("/api/v1/settle", {
  body: { ack: leased.data.messages.map((message) => message.receipt) },
});
if (settled.error) throw new Error(explain(settled.error));
console.log(settled.data.results.map((one) => one.status).join());

const missing = await penstock.GET("/api/v1/namespaces/{namespace}/queues/{queue}", {
  params: { path: { namespace: "default", queue: "nowhere" } },
});
if (missing.error) console.log(explain(missing.error));
