import { Marked } from "marked";
import { expect, test } from "vitest";
import { FORMULAS } from "../src/ui/formula";

const markdown = new Marked({ async: false, breaks: true, gfm: true, extensions: FORMULAS });
const formula = (tex: string, kind = "") => `<code class="formula${kind}">${tex}</code>`;

test.each([
  ["$a_1 * b * c$ and \\(x<y\\)", `<p>${formula("a_1 * b * c")} and ${formula("x&lt;y")}</p>`],
  ["It costs $5 and $6.\nMore $", "<p>It costs $5 and $6.<br>More $</p>"],
  ["So\n$$\na\n- b\n$$\nthen", `<p>So</p>${formula("a\n- b", " displayed")}<p>then</p>`],
  ["So \\[a\\] then $$b$$", `<p>So ${formula("a", " displayed")} then ${formula("b", " displayed")}</p>`],
  ["`$a$` \\$b\\$", "<p><code>$a$</code> $b$</p>"],
  ["$$a", "<p>$$a</p>"],
])("formulas are distinguished from text", (text, html) => {
  expect((markdown.parse(text) as string).replaceAll(/(?<!<code[^>]*>[^<]*)\n/g, "")).toBe(html);
});
