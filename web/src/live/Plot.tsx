// One plot over time, by uPlot.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

export interface Line {
  label: string;
  values: (number | null)[];
}

const HEIGHT = 180;
const COLOURS = ["--line-1", "--line-2"];

function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function Plot({ title, times, lines, unit }: { title: string; times: number[]; lines: Line[]; unit: (value: number) => string }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    const axis = { stroke: () => colour("--muted"), grid: { stroke: () => colour("--line"), width: 1 } };
    const made = new uPlot(
      {
        width: element.clientWidth,
        height: HEIGHT,
        cursor: { drag: { x: false, y: false } },
        scales: { y: { range: (_self, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
        axes: [axis, { ...axis, size: 64, values: (_self, ticks) => ticks.map(unit) }],
        series: [
          {},
          ...lines.map(({ label }, index) => ({
            label,
            stroke: () => colour(COLOURS[index] ?? "--line-1"),
            width: 2,
            spanGaps: false,
            value: (_self: uPlot, value: number | null) => (value == null ? "–" : unit(value)),
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
    <figure class="plot">
      <figcaption>{title}</figcaption>
      <div ref={box} aria-hidden="true" />
    </figure>
  );
}
