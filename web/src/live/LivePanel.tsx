// How the server does: now as numbers, the last minutes as plots.
import { useEffect } from "preact/hooks";
import { info } from "../api/model";
import { follow, isReady, samples, trouble } from "./history";
import { Plot } from "./Plot";

const plain = (value: number) => (Number.isInteger(value) ? String(value) : value.toFixed(1));
const inPercent = (value: number) => `${(100 * value).toFixed(0)} %`;
const inTime = (value: number) => (value < 1 ? `${(1000 * value).toFixed(value < 0.01 ? 1 : 0)} ms` : `${value.toFixed(2)} s`);

function shown(value: number | null | undefined, unit: (value: number) => string): string {
  return value == null ? "–" : unit(value);
}

export function LivePanel() {
  useEffect(follow, []);
  const all = samples.value;
  const now = all.at(-1);
  const times = all.map(({ timeS }) => timeS);
  const tiles = [
    ["Running", shown(now?.running, plain)],
    ["Queued", shown(now?.queued, plain)],
    ["Tokens/s", shown(now?.tokensPerS, plain)],
    ["KV cache", shown(now?.kvUse, inPercent)],
    ["Prefix hits", shown(now?.prefixHits, inPercent)],
    ["First token, p95", shown(now?.firstToken.p95, inTime)],
    ["Between tokens, p95", shown(now?.betweenTokens.p95, inTime)],
  ] as const;
  const quantiles = (name: "firstToken" | "betweenTokens") => [
    { label: "p50", values: all.map((sample) => sample[name].p50) },
    { label: "p95", values: all.map((sample) => sample[name].p95) },
  ];
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
          unit={plain}
          lines={[
            { label: "running", values: all.map(({ running }) => running) },
            { label: "queued", values: all.map(({ queued }) => queued) },
          ]}
        />
        <Plot title="Tokens per second" times={times} unit={plain} lines={[{ label: "tokens/s", values: all.map(({ tokensPerS }) => tokensPerS) }]} />
        <Plot
          title="KV cache and prefix hits"
          times={times}
          unit={inPercent}
          lines={[
            { label: "KV in use", values: all.map(({ kvUse }) => kvUse) },
            { label: "prefix hits", values: all.map(({ prefixHits }) => prefixHits) },
          ]}
        />
        <Plot title="Time to first token" times={times} unit={inTime} lines={quantiles("firstToken")} />
        <Plot title="Time between tokens" times={times} unit={inTime} lines={quantiles("betweenTokens")} />
      </div>
      <Facts />
    </main>
  );
}

function Facts() {
  const names = ["model_id", "version", "model_dtype", "model_device_type", "executor", "num_shards", "max_total_tokens", "max_batch_size", "num_blocks", "block_size"];
  const known = names.filter((name) => info.value[name] != null);
  if (known.length === 0) return null;
  return (
    <section aria-label="What is served">
      <h2>Served</h2>
      <dl class="facts">
        {known.map((name) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{String(info.value[name])}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}
