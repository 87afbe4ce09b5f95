// The last minutes of the server, scraped while the live view is open.
import { signal } from "@preact/signals";
import { sentence } from "../api/errors";
import { healthOf, getText } from "../api/server";
import type { Sample, Scrape } from "./metrics";
import { gapAt, parse, sampleOf } from "./metrics";

const PERIOD_MS = 2000;
// Longer without a look: the view was closed, or out of sight.
const MAX_STEP_S = 10;
export const MAX_AGE_S = 600;
// Of this tab, for when the page is loaded anew.
const NAME = "tandem.live.1";

export const samples = signal<Sample[]>(recent(JSON.parse(sessionStorage.getItem(NAME) ?? "[]") as Sample[]));
addEventListener("pagehide", () => sessionStorage.setItem(NAME, JSON.stringify(samples.value)));
/** null: not known yet. */
export const isReady = signal<boolean | null>(null);
export const trouble = signal<string | null>(null);

let last: { scrape: Scrape; timeS: number } | null = null;

function recent(all: Sample[]): Sample[] {
  return all.filter(({ timeS }) => timeS > Date.now() / 1000 - MAX_AGE_S);
}

async function scrape(): Promise<void> {
  isReady.value = (await healthOf("health/ready")) === 200;
  try {
    const now = parse(await getText("metrics"));
    const timeS = Date.now() / 1000;
    keep(sampleOf(now, last?.scrape ?? null, timeS, last === null ? 1 : timeS - last.timeS));
    last = { scrape: now, timeS };
    trouble.value = null;
  } catch (error) {
    if (last !== null) keep(gapAt(Date.now() / 1000));
    trouble.value = sentence(error);
  }
}

function keep(sample: Sample): void {
  const before = samples.value.at(-1);
  const isLate = before !== undefined && sample.timeS - before.timeS > MAX_STEP_S;
  samples.value = recent([...samples.value, ...(isLate ? [gapAt(sample.timeS - 1)] : []), sample]);
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
