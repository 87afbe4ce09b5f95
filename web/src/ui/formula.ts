// Formulas in Markdown: found here, set as MathML by KaTeX, which is loaded with the first one.
import type katex from "katex";
import type { TokenizerAndRendererExtension } from "marked";

const DISPLAYED = /^(?:\$\$([^$]+)\$\$|\\\[([\s\S]+?)\\\])/;
const BLOCK = /^ {0,3}(?:\$\$([^$]+)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/;
// `$5 and $6` is money: no blank within, no digit behind.
const INLINE = /^(?:\\\(([\s\S]+?)\\\)|\$([^\s$](?:[^$\n]*[^\s$])?)\$(?!\d))/;
const MAX_EXPANSIONS = 500;

let loading: Promise<typeof katex> | undefined;

function extension(name: string, level: "block" | "inline", begin: RegExp, pattern: RegExp): TokenizerAndRendererExtension {
  return {
    name,
    level,
    start: (source) => source.search(begin),
    tokenizer(source) {
      const found = pattern.exec(source);
      return found === null ? undefined : { type: name, raw: found[0], text: (found[1] ?? found[2] ?? "").trim() };
    },
    renderer: ({ text }) => `<code class="formula${pattern === INLINE ? "" : " displayed"}">${escape(String(text))}</code>`,
  };
}

export const FORMULAS = [
  // At the beginning of a line alone: a paragraph ends where a block may begin.
  extension("formula-block", "block", /(?<=^|\n) {0,3}(?:\$\$|\\\[)/, BLOCK),
  extension("formula-displayed", "inline", /\$\$|\\\[/, DISPLAYED),
  extension("formula", "inline", /\$|\\\(/, INLINE),
];

export function escape(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
}

/** Puts MathML in place of the formulas of an element, once KaTeX is there; one that is wrong stays text. */
export async function setFormulas(element: HTMLElement): Promise<void> {
  if (element.querySelector("code.formula") === null) return;
  loading ??= import("katex").then((module) => module.default);
  const { render } = await loading;
  for (const formula of element.querySelectorAll<HTMLElement>("code.formula")) {
    const box = document.createElement("span");
    const displayMode = formula.classList.contains("displayed");
    box.className = displayMode ? "math displayed" : "math";
    try {
      // It builds nodes, not HTML.
      render(formula.textContent, box, { output: "mathml", displayMode, strict: "ignore", maxExpand: MAX_EXPANSIONS, maxSize: 20 });
    } catch {
      continue;
    }
    formula.replaceWith(box);
  }
}
