// The last minutes of the server, scraped while the live view is open.
import { signal } from "@preact/signals";
import { sentence } from "../api/errors";
import { healthOf, getText } from "../api/server";
import type { Sample, Scrape } from "./metrics";
import { gapAt, parse, sampleOf } from "./metrics";

const PERIOD_MS = 2000;
const MAX_STEP_S = 10;
const MAX_SAMPLES = 300;
export const MAX_MINUTES = (MAX_SAMPLES * PERIOD_MS) / 60_000;

export const samples = signal<Sample[]>([]);
/** null: not known yet. */
export const isReady = signal<boolean | null>(null);
export const trouble = signal<string | null>(null);

let last: { scrape: Scrape; timeS: number } | null = null;

async function scrape(): Promise<void> {
  isReady.value = (await healthOf("health/ready")) === 200;
  try {
    const now = parse(await getText("metrics"));
    const timeS = Date.now() / 1000;
    // The view was closed, or out of sight.
    if (last !== null && timeS - last.timeS > MAX_STEP_S) keep(gapAt(timeS - 1));
    keep(sampleOf(now, last?.scrape ?? null, timeS, last === null ? 1 : timeS - last.timeS));
    last = { scrape: now, timeS };
    trouble.value = null;
  } catch (error) {
    if (last !== null) keep(gapAt(Date.now() / 1000));
    trouble.value = sentence(error);
  }
}

function keep(sample: Sample): void {
  samples.value = [...samples.value.slice(1 - MAX_SAMPLES), sample];
}

/** Scrapes until what it returns is called. */
export function follow(): () => void {
  let isOver = false;
  let timer: ReturnType<typeof setTimeout> | undefined;
  async function go(): Promise<void> {
    if (!document.hidden) await scrape();
    if (!isOver) timer = setTimeout(() => void go(), PERIOD_MS);
  }
  void go();
  return () => {
    isOver = true;
    clearTimeout(timer);
  };
}
