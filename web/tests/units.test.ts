import { expect, test } from "vitest";
import { probability } from "../src/tokens/token";
import { fixed, readable } from "../src/ui/numbers";
import { clock, count, digitsOf, duration, rate, share } from "../src/live/units";

const upTo = (top: number, step: number) => Array.from({ length: Math.round(top / step) + 1 }, (_, index) => index * step);

test("ticks have the digits of their step, and so differ", () => {
  expect(share.ticks(upTo(0.002, 0.0005), 0.0005)).toEqual(["0.00%", "0.05%", "0.10%", "0.15%", "0.20%"]);
  expect(share.ticks(upTo(1, 0.25), 0.25)).toEqual(["0%", "25%", "50%", "75%", "100%"]);
  expect(rate.ticks(upTo(0.75, 0.25), 0.25)).toEqual(["0.00", "0.25", "0.50", "0.75"]);
  expect(rate.ticks(upTo(4000, 2000), 2000)).toEqual(["0", "2,000", "4,000"]);
  for (const unit of [rate, share, duration]) {
    for (const step of [1e-4, 2.5e-4, 0.001, 0.05, 0.1, 0.2, 0.25, 0.5, 1, 2.5]) {
      const ticks = unit.ticks(upTo(4 * step, step), step);
      expect(new Set(ticks).size).toBe(5);
    }
  }
});

test("a number is the reader's", () => {
  expect([fixed(1234.5, 1), readable(1234), readable(9)]).toEqual(["1,234.5", "1,234", "9"]);
  expect([0, -0.96, -7, -Infinity].map(probability)).toEqual(["100%", "38.3%", "< 0.1%", "0%"]);
});

test("digits of a step that binary fractions miss by a little", () => {
  expect([0.1, 0.25, 100 * 0.0005, 1000 * 0.0001, 3].map(digitsOf)).toEqual([1, 2, 2, 1, 0]);
});

test("a count has whole ticks alone", () => {
  expect(count.steps?.slice(0, 5)).toEqual([1, 2, 5, 10, 20]);
});

test("an axis of lengths of time is in one unit", () => {
  expect(duration.ticks([0, 0.005, 0.01], 0.005)).toEqual(["0 ms", "5 ms", "10 ms"]);
  expect(duration.ticks([0, 0.5, 1], 0.5)).toEqual(["0.0 s", "0.5 s", "1.0 s"]);
});

test("a value alone has three digits that count", () => {
  expect([0.00321, 0.0321, 0.321, 0].map(share.text)).toEqual(["0.32%", "3.2%", "32%", "0%"]);
  expect([0.01234, 0.3216, 1.234].map(duration.text)).toEqual(["12.3 ms", "322 ms", "1.23 s"]);
  expect([0, 4, 0.516, 4412.3].map(rate.text)).toEqual(["0", "4", "0.52", "4,412"]);
});

test("times have seconds where ticks are closer than minutes", () => {
  const noon = new Date(2026, 10, 29, 12, 5, 7).getTime() / 1000;
  expect(clock.text(noon)).toContain("05:07");
  expect(clock.ticks([noon], 30)[0]).toContain("05:07");
  expect(clock.ticks([noon], 60)[0]).not.toContain(":07");
  expect(Math.min(...clock.steps)).toBe(1);
});
