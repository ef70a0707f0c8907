// The openai SDK for Node against a running gateway. BASE_URL, API_KEY and OTHER_KEY come from the environment.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const { BASE_URL: baseURL, API_KEY: apiKey, OTHER_KEY: otherKey } = process.env;
const model = "forebay-sim";
const messages = [{ role: "user", content: "Tell me about the river." }];
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const fault = (text, id) => ({ headers: { "x-forebay-fault": text, ...(id ? { "x-request-id": id } : {}) } });
const chat = (more, options) => client.chat.completions.create({ model, messages, max_tokens: 12, ...more }, options);
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    parameters: { type: "object", properties: { place: { type: "string" } }, required: ["place"] },
  },
};

async function collect(stream) {
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
  return text;
}

test("a stream says what the whole answer says", async () => {
  const whole = await chat({});
  const text = await collect(await chat({ stream: true }));
  assert.ok(text);
  assert.equal(text, whole.choices[0].message.content);
  assert.ok(whole.usage.completion_tokens > 0);
});

test("usage ends a stream that asked for it", async () => {
  const stream = await chat({ stream: true, ignore_eos: true, stream_options: { include_usage: true } });
  let last;
  for await (const chunk of stream) last = chunk;
  assert.deepEqual(last.choices, []);
  assert.equal(last.usage.completion_tokens, 12);
});

test("tools, whole and streamed", async () => {
  const ask = { tools: [weather], tool_choice: "required", max_tokens: 100 };
  const whole = await chat(ask);
  assert.equal(whole.choices[0].finish_reason, "tool_calls");
  const call = whole.choices[0].message.tool_calls[0];
  assert.equal(call.function.name, "get_weather");
  assert.ok("place" in JSON.parse(call.function.arguments));
  const final = await client.chat.completions.stream({ model, messages, ...ask }).finalChatCompletion();
  assert.equal(final.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);
});

test("JSON mode and a JSON schema", async () => {
  const free = await chat({ response_format: { type: "json_object" }, max_tokens: 500 });
  assert.equal(typeof JSON.parse(free.choices[0].message.content), "object");
  const schema = { type: "object", properties: { name: { type: "string" } }, required: ["name"] };
  const bound = await chat({
    response_format: { type: "json_schema", json_schema: { name: "river", schema } }, max_tokens: 500,
  });
  assert.deepEqual(Object.keys(JSON.parse(bound.choices[0].message.content)), ["name"]);
});

test("logprobs and several choices", async () => {
  const answer = await chat({ logprobs: true, top_logprobs: 2, n: 3 });
  assert.equal(answer.choices.length, 3);
  for (const choice of answer.choices) assert.equal(choice.logprobs.content[0].top_logprobs.length, 2);
});

test("completions, embeddings, models", async () => {
  assert.ok((await client.completions.create({ model, prompt: "Once", max_tokens: 4 })).choices[0].text);
  assert.equal((await client.embeddings.create({ model, input: ["a", "b"] })).data.length, 2);
  const names = [];
  for await (const one of client.models.list()) names.push(one.id);
  assert.ok(names.includes(model));
  assert.equal((await client.models.retrieve(model)).id, model);
});

for (const [name, type, status, code, make] of [
  ["400", OpenAI.BadRequestError, 400, "wrong_type", () => chat({ messages: "no list" })],
  ["401", OpenAI.AuthenticationError, 401, "invalid_api_key", () => client.withOptions({ apiKey: "wrong" }).models.list()],
  ["404", OpenAI.NotFoundError, 404, "model_not_found", () => chat({ model: "nothing" })],
  ["413", OpenAI.APIError, 413, "body_too_large", () => chat({ user: "x".repeat(250_000) })],
  ["415", OpenAI.APIError, 415, "unsupported_media_type", () => chat({}, { headers: { "content-type": "text/plain" } })],
  ["429", OpenAI.RateLimitError, 429, "engine_overloaded", () => chat({}, fault("overload503"))],
  ["502", OpenAI.InternalServerError, 502, "engine_error", () => chat({ stream: true }, fault("error=500"))],
  ["503", OpenAI.InternalServerError, 503, "no_engine", () => chat({ model: "gone" })],
  ["504", OpenAI.InternalServerError, 504, "engine_timeout", () => chat({ stream: true }, fault("stall"))],
]) {
  test(`status ${name} is the SDK's own error`, async () => {
    await assert.rejects(async () => await make(), (error) => {
      assert.ok(error instanceof type, `${error}`);
      assert.equal(error.status, status);
      assert.equal(error.code, code);
      assert.ok(error.requestID);
      return true;
    });
  });
}

test("a cut stream throws after its words", async () => {
  let words = 0;
  await assert.rejects(async () => {
    for await (const chunk of await chat({ stream: true, max_tokens: 50 }, fault("cut=3"))) {
      if (chunk.choices[0].delta.content) words += 1;
    }
  }, OpenAI.APIError);
  assert.equal(words, 3);
});

test("Retry-After is waited for", async () => {
  const put = await fetch(`${process.env.ENGINE_URL}/control/faults`, {
    method: "PUT", headers: { "content-type": "application/json" },
    body: JSON.stringify([{ kind: "overload429", arg: 2, count: 1 }]),
  });
  assert.equal(put.status, 200);
  const began = performance.now();
  const answer = await client.withOptions({ maxRetries: 2 }).chat.completions.create({ model, messages, max_tokens: 3 });
  assert.ok(answer.choices[0].message.content);
  assert.ok(performance.now() - began >= 2000);
});

async function howItEnded(id) {
  for (const end = performance.now() + 10_000; performance.now() < end; ) {
    const books = await (await fetch(`${process.env.ENGINE_URL}/control/requests`)).json();
    const record = books.records.findLast((r) => r.id === id);
    if (record?.how) return record.how;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  return "never";
}

test("time-out ends the engine's work", async () => {
  await assert.rejects(
    chat({}, { timeout: 300, ...fault("stall", "node-late") }), OpenAI.APIConnectionTimeoutError,
  );
  assert.equal(await howItEnded("node-late"), "aborted");
});

test("AbortController and leaving the loop end the engine's work", async () => {
  const long = { stream: true, max_tokens: 5000, ignore_eos: true };
  const controller = new AbortController();
  const aborted = await chat(long, { signal: controller.signal, headers: { "x-request-id": "node-abort" } });
  for await (const _ of aborted) controller.abort();
  assert.equal(await howItEnded("node-abort"), "aborted");
  for await (const _ of await chat(long, { headers: { "x-request-id": "node-break" } })) break;
  assert.equal(await howItEnded("node-break"), "aborted");
  const waiting = new AbortController();
  setTimeout(() => waiting.abort(), 100);
  await assert.rejects(
    chat({}, { signal: waiting.signal, ...fault("stall", "node-wait") }), OpenAI.APIUserAbortError,
  );
  assert.equal(await howItEnded("node-wait"), "aborted");
});

test("x-request-id comes back with the raw response", async () => {
  const { response, request_id } = await chat({}, { headers: { "x-request-id": "node-1" } }).withResponse();
  assert.equal(response.headers.get("x-request-id"), "node-1");
  assert.equal(request_id, "node-1");
});

test("cancel ends a stream of the same key, not of another", async () => {
  const options = { headers: { "x-request-id": "node-cancel" } };
  const stream = await chat({ stream: true, max_tokens: 5000, ignore_eos: true }, options);
  await assert.rejects(
    client.withOptions({ apiKey: otherKey }).post("/requests/node-cancel/cancel"), OpenAI.NotFoundError,
  );
  assert.equal((await client.post("/requests/node-cancel/cancel")).cancelled, 1);
  await assert.rejects(collect(stream), (error) => error.code === "request_cancelled");
  assert.equal(await howItEnded("node-cancel"), "aborted");
});
