import { expect, test } from "vitest";
import { gapAt, parse, quantile, sampleOf } from "../src/live/metrics";

const scrape = (tokens: number, fast: number, all: number) =>
  parse(`# HELP tgi_queue_size of it
tgi_queue_size{model="a"} 2.0
tgi_queue_size{model="b"} 3.0
tandem_kv_blocks_used 10.0
tandem_kv_blocks_capacity 40.0
tandem_output_tokens_total ${tokens}
tgi_request_success_total ${all}
tandem_inter_token_latency_seconds_bucket{le="0.01"} ${fast}
tandem_inter_token_latency_seconds_bucket{le="0.02"} ${all}
tandem_inter_token_latency_seconds_bucket{le="+Inf"} ${all}
`);

test("a sample is what happened between two scrapes", () => {
  const sample = sampleOf(scrape(300, 60, 110), scrape(100, 10, 10), 7, 2);

  expect(sample.queued).toBe(5);
  expect(sample.kvUse).toBe(0.25);
  expect(sample.tokensPerS).toBe(100);
  expect(sample.requestsPerS).toBe(50);
  expect(sample.betweenTokens.p50).toBeCloseTo(0.01);
  expect(sample.betweenTokens.p95).toBeCloseTo(0.019);
  expect(sample.running).toBeNull();
});

test("a server that was started anew has no rate at first", () => {
  expect(sampleOf(scrape(5, 0, 0), scrape(100, 10, 10), 7, 2).tokensPerS).toBeNull();
});

test("while the server does not answer there is no value", () => {
  const { timeS, firstToken, betweenTokens, ...values } = gapAt(7);

  expect(timeS).toBe(7);
  expect(new Set([...Object.values(values), firstToken.p50, betweenTokens.p95])).toEqual(new Set([null]));
});

test("beyond the last bound the last bound is said", () => {
  expect(quantile([[0.5, 0], [Infinity, 4]], 0.5)).toBe(0.5);
  expect(quantile([[0.5, 0], [Infinity, 0]], 0.5)).toBeNull();
});
