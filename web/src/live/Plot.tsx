// One plot over time, by uPlot.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Unit } from "./units";
import { clock } from "./units";

export interface Line {
  label: string;
  values: (number | null)[];
}

const HEIGHT = 180;
const COLOURS = ["--line-1", "--line-2"];
// The axis of times is never shorter, so that the first points do not fill it.
const MIN_SPAN_S = 60;
// Pixels between ticks: a time with seconds and AM or PM has room.
const TIME_SPACE = 90;
const HALF_TIME = 36;

function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** A value of the legend: under the cursor, or else the newest. */
function shownAs(text: (value: number) => string): uPlot.Series.Value {
  return (self, value, index, place) => {
    const shown = place === null ? self.data[index]?.at(-1) : value;
    return shown == null ? "–" : text(shown);
  };
}

/** `nothing`: what stands in the plot while it has no value. */
export function Plot({ title, times, lines, unit, nothing }: { title: string; times: number[]; lines: Line[]; unit: Unit; nothing: string }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const isEmpty = lines.every(({ values }) => values.every((value) => value === null));
  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    const axis = { stroke: () => colour("--muted"), grid: { stroke: () => colour("--line"), width: 1 } };
    const made = new uPlot(
      {
        width: element.clientWidth,
        height: HEIGHT,
        padding: [null, HALF_TIME, null, null],
        cursor: { drag: { x: false, y: false } },
        scales: {
          x: { range: (_self, first, last) => [Math.min(first, last - MIN_SPAN_S), last] },
          y: { range: (_self, _low, high) => [0, high > 0 ? Math.max(1.1 * high, unit.steps === undefined ? 0 : unit.top) : unit.top] },
        },
        axes: [
          { ...axis, size: 32, space: TIME_SPACE, incrs: clock.steps, values: (_self, ticks, _index, _space, step) => clock.ticks(ticks, step) },
          {
            ...axis,
            size: 64,
            ...(unit.steps === undefined ? {} : { incrs: unit.steps }),
            values: (_self, ticks, _index, _space, step) => unit.ticks(ticks, step),
          },
        ],
        series: [
          { label: "Time", value: shownAs(clock.text) },
          ...lines.map(({ label }, index) => ({
            label,
            stroke: () => colour(COLOURS[index] ?? "--line-1"),
            width: 2,
            spanGaps: false,
            points: { size: 5, fill: () => colour(COLOURS[index] ?? "--line-1") },
            value: shownAs(unit.text),
          })),
        ],
      },
      [times, ...lines.map(({ values }) => values)],
      element,
    );
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, []);
  useEffect(() => plot.current?.setData([times, ...lines.map(({ values }) => values)]), [times, lines]);
  return (
    <figure class={isEmpty ? "plot none" : "plot"}>
      <figcaption>{title}</figcaption>
      <div ref={box} aria-hidden="true" />
      {isEmpty && <p class="hint">{nothing}</p>}
    </figure>
  );
}
