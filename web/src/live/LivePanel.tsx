// How the server does: now as numbers, the last minutes as plots.
import { useEffect } from "preact/hooks";
import { info } from "../api/model";
import { follow, isReady, MAX_AGE_S, samples, trouble } from "./history";
import { Plot } from "./Plot";
import type { Unit } from "./units";
import { clock, count, duration, rate, share } from "./units";

function shown(value: number | null | undefined, unit: Unit): string {
  return value == null ? "–" : unit.text(value);
}

export function LivePanel() {
  useEffect(follow, []);
  const all = samples.value;
  const now = all.at(-1);
  const times = all.map(({ timeS }) => timeS);
  const tiles = [
    ["Running", shown(now?.running, count)],
    ["Queued", shown(now?.queued, count)],
    ["Tokens/s", shown(now?.tokensPerS, rate)],
    ["Requests/s", shown(now?.requestsPerS, rate)],
    ["KV cache", shown(now?.kvUse, share)],
    ["Prefix hits", shown(now?.prefixHits, share)],
    ["First token, p95", shown(now?.firstToken.p95, duration)],
    ["Between tokens, p95", shown(now?.betweenTokens.p95, duration)],
  ] as const;
  const quantiles = (name: "firstToken" | "betweenTokens") => [
    { label: "p50", values: all.map((sample) => sample[name].p50) },
    { label: "p95", values: all.map((sample) => sample[name].p95) },
  ];
  const waiting = "Nothing is known yet.";
  const idle = "No token in this time.";
  return (
    <main class="live" tabIndex={0}>
      <h1>Live</h1>
      <p role="status">
        {trouble.value ?? (isReady.value === null ? "Asking …" : isReady.value ? "Ready" : "Not ready: starting, recovering or stopping")}
      </p>
      <dl class="tiles">
        {tiles.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      <div class="plots">
        <Plot
          title="Sequences"
          times={times}
          unit={count}
          nothing={waiting}
          lines={[
            { label: "running", values: all.map(({ running }) => running) },
            { label: "queued", values: all.map(({ queued }) => queued) },
          ]}
        />
        <Plot
          title="KV cache and prefix hits"
          times={times}
          unit={share}
          nothing={waiting}
          lines={[
            { label: "KV in use", values: all.map(({ kvUse }) => kvUse) },
            { label: "prefix hits", values: all.map(({ prefixHits }) => prefixHits) },
          ]}
        />
        <Plot
          title="Tokens per second"
          times={times}
          unit={rate}
          nothing={waiting}
          lines={[{ label: "tokens/s", values: all.map(({ tokensPerS }) => tokensPerS) }]}
        />
        <Plot
          title="Requests answered per second"
          times={times}
          unit={rate}
          nothing={waiting}
          lines={[{ label: "requests/s", values: all.map(({ requestsPerS }) => requestsPerS) }]}
        />
        <Plot title="Time to first token" times={times} unit={duration} nothing={idle} lines={quantiles("firstToken")} />
        <Plot title="Time between tokens" times={times} unit={duration} nothing={idle} lines={quantiles("betweenTokens")} />
      </div>
      {times[0] !== undefined && (
        <p class="hint">
          Since {clock.text(times[0])}. The server is watched while this view is open, and the last {MAX_AGE_S / 60} minutes are kept.
        </p>
      )}
      <Facts />
    </main>
  );
}

const FACTS = {
  model_id: "Model",
  version: "Version of Tandem",
  model_dtype: "Weights",
  model_device_type: "Device",
  executor: "Executor",
  num_shards: "Shards",
  max_total_tokens: "Longest context, tokens",
  max_batch_size: "Sequences at once",
  num_blocks: "Blocks of KV cache",
  block_size: "Tokens of a block",
} as const;

function Facts() {
  const known = Object.entries(FACTS).filter(([name]) => info.value[name] != null);
  if (known.length === 0) return null;
  return (
    <section aria-label="What is served">
      <h2>Served</h2>
      <dl class="facts">
        {known.map(([name, label]) => (
          <div key={name}>
            <dt>{label}</dt>
            <dd>{factOf(info.value[name])}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function factOf(value: unknown): string {
  return typeof value === "number" ? count.text(value) : String(value);
}
