// Prometheus' text format, as far as the live view needs it: values, and histograms between two scrapes.

/** One scrape: the value of each series by its name with labels. */
export type Scrape = Map<string, number>;

export interface Sample {
  /** Unix time, seconds. */
  timeS: number;
  queued: number | null;
  running: number | null;
  /** 0 to 1. */
  kvUse: number | null;
  prefixHits: number | null;
  tokensPerS: number | null;
  /** Answered in full. */
  requestsPerS: number | null;
  /** Seconds. */
  firstToken: Percentiles;
  betweenTokens: Percentiles;
}

export interface Percentiles {
  p50: number | null;
  p95: number | null;
}

const NONE: Percentiles = { p50: null, p95: null };

const LINE = /^([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)$/;

export function parse(text: string): Scrape {
  const scrape: Scrape = new Map();
  for (const line of text.split("\n")) {
    const found = LINE.exec(line);
    if (found?.[1] !== undefined) scrape.set(found[1] + (found[2] ?? ""), Number(found[3]));
  }
  return scrape;
}

/** What happened between two scrapes. The first one of a page has none before it. */
export function sampleOf(now: Scrape, before: Scrape | null, timeS: number, elapsedS: number): Sample {
  const grown = (name: string): number | null => {
    const [later, earlier] = [sum(now, name), before === null ? null : sum(before, name)];
    // A server that was started anew counts from 0.
    return later === null || earlier === null || later < earlier ? null : later - earlier;
  };
  const perS = (name: string): number | null => {
    const growth = grown(name);
    return growth === null ? null : growth / elapsedS;
  };
  return {
    timeS,
    queued: sum(now, "tgi_queue_size"),
    running: sum(now, "tgi_batch_current_size"),
    kvUse: share(sum(now, "tandem_kv_blocks_used"), sum(now, "tandem_kv_blocks_capacity")),
    prefixHits: share(grown("tandem_prefix_cache_hit_tokens_total"), grown("tandem_prompt_tokens_total")),
    tokensPerS: perS("tandem_output_tokens_total"),
    requestsPerS: perS("tgi_request_success_total"),
    firstToken: percentiles(now, before, "tandem_time_to_first_token_seconds"),
    betweenTokens: percentiles(now, before, "tandem_inter_token_latency_seconds"),
  };
}

/** A time when the server did not answer: lines end before it. */
export function gapAt(timeS: number): Sample {
  return {
    timeS,
    queued: null,
    running: null,
    kvUse: null,
    prefixHits: null,
    tokensPerS: null,
    requestsPerS: null,
    firstToken: NONE,
    betweenTokens: NONE,
  };
}

/** The sum over a name's series, of which several models have one each; null: there is none. */
function sum(scrape: Scrape, name: string): number | null {
  let total: number | null = null;
  for (const [series, value] of scrape) {
    if (series === name || series.startsWith(`${name}{`)) total = (total ?? 0) + value;
  }
  return total;
}

function share(part: number | null, whole: number | null): number | null {
  return part === null || whole === null || whole === 0 ? null : part / whole;
}

function percentiles(now: Scrape, before: Scrape | null, name: string): Percentiles {
  if (before === null) return NONE;
  const [later, earlier] = [buckets(now, name), buckets(before, name)];
  const counts = later.map(([bound, count], index) => [bound, count - (earlier[index]?.[1] ?? 0)] as const);
  return { p50: quantile(counts, 0.5), p95: quantile(counts, 0.95) };
}

/** Cumulative counts by upper bound, rising. */
function buckets(scrape: Scrape, name: string): [number, number][] {
  const found = new Map<number, number>();
  for (const [series, value] of scrape) {
    if (!series.startsWith(`${name}_bucket{`)) continue;
    const text = /le="([^"]+)"/.exec(series)?.[1];
    const bound = text === "+Inf" ? Infinity : Number(text);
    found.set(bound, (found.get(bound) ?? 0) + value);
  }
  return [...found].sort(([one], [other]) => one - other);
}

/** As Prometheus' histogram_quantile: linear within a bucket. */
export function quantile(counts: readonly (readonly [number, number])[], share: number): number | null {
  const total = counts.at(-1)?.[1] ?? 0;
  if (total <= 0) return null;
  const rank = share * total;
  let [lowBound, lowCount] = [0, 0];
  for (const [bound, count] of counts) {
    if (count >= rank) {
      if (bound === Infinity) return lowBound;
      return lowBound + ((bound - lowBound) * (rank - lowCount)) / (count - lowCount);
    }
    [lowBound, lowCount] = [bound, count];
  }
  return null;
}
