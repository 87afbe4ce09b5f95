// Values of the live view in words: alone, and as the ticks of an axis, in the reader's locale.
import { fixed, percent, readable } from "../ui/numbers";

export interface Unit {
  /** A value for reading: three digits that count, or a whole number. */
  text(value: number): string;
  /** An axis' ticks, `step` apart: with as many digits as tell them apart. */
  ticks(values: number[], step: number): string[];
  /** The steps that an axis may have; absent: any. */
  steps?: number[];
  /** The top of the axis where nothing is higher. */
  top: number;
}

// Beyond this the numbers of a chart are noise.
const MAX_DIGITS = 10;
const WHOLE_STEPS = [1, 2, 5].flatMap((digit) => [...Array(7).keys()].map((power) => digit * 10 ** power)).sort((one, other) => one - other);
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600];

/** How many digits behind the point a step has. */
export function digitsOf(step: number): number {
  let digits = 0;
  while (digits < MAX_DIGITS && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6) digits += 1;
  return digits;
}

export const count: Unit = {
  text: readable,
  ticks: (values, step) => values.map((value) => fixed(value, digitsOf(step))),
  steps: WHOLE_STEPS,
  top: 1,
};

/** Per second. */
export const rate: Unit = {
  text: readable,
  ticks: count.ticks,
  top: 1,
};

/** 0 to 1, shown as percent. */
export const share: Unit = {
  text(value) {
    const digits = value === 0 || value >= 0.1 ? 0 : value >= 0.01 ? 1 : 2;
    return percent(value, digits);
  },
  ticks(values, step) {
    const digits = digitsOf(100 * step);
    return values.map((value) => percent(value, digits, digits));
  },
  top: 1,
};

/** A length of time, given in seconds. */
export const duration: Unit = {
  text: (value) => (value < 1 ? `${readable(1000 * value)} ms` : `${readable(value)} s`),
  ticks(values, step) {
    // All in one unit.
    const [scale, unit] = Math.max(...values) < 1 ? [1000, "ms"] : [1, "s"];
    return values.map((value) => `${fixed(scale * value, digitsOf(scale * step))} ${unit}`);
  },
  top: 1,
};

/** A time of the day, given in Unix time. */
export const clock = {
  text: (value: number) => time(value, true),
  ticks: (values: number[], step: number) => values.map((value) => time(value, step < 60)),
  steps: TIME_STEPS,
};

function time(value: number, hasSeconds: boolean): string {
  const format: Intl.DateTimeFormatOptions = { hour: "numeric", minute: "2-digit", ...(hasSeconds ? { second: "2-digit" } : {}) };
  return new Intl.DateTimeFormat(undefined, format).format(1000 * value);
}
