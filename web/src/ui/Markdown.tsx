// An answer as Markdown. It may be hostile: what comes out has no scripts, no styles, no images, and
// links that say where they lead.
import DOMPurify from "dompurify";
import type { Token } from "marked";
import { Marked } from "marked";
import { render as renderInto } from "preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { Copy } from "./Copy";
import { escape, FORMULAS, setFormulas } from "./formula";
import { highlighted, highlighter } from "./highlight";
import "./markdown.css";

// Longer texts are shown as they are: parsing them would take longer than a frame.
const MAX_LEN = 60_000;

const ALLOWED_TAGS = [
  ...["p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "strong", "em", "del", "code", "pre", "blockquote"],
  ...["ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td", "a", "span"],
];
// Those that the renderers below give, and highlight.js.
const ALLOWED_CLASS = /^(formula( displayed)?|language-[\w+#.-]+|hljs-[\w-]+( \w+_)*)$/;

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (!ALLOWED_CLASS.test(node.getAttribute("class") ?? "")) node.removeAttribute("class");
  if (node.tagName !== "A") return;
  const address = node.getAttribute("href") ?? "";
  if (!/^https?:\/\//.test(address)) {
    node.removeAttribute("href");
    return;
  }
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
  node.setAttribute("title", address);
});

// Models write of HTML more often than in it: what they write is shown. Images would be fetched.
const markdown = new Marked({
  async: false,
  breaks: true,
  gfm: true,
  extensions: FORMULAS,
  renderer: {
    html: ({ text }) => escape(text),
    image: ({ href, text }) => escape(`![${text}](${href})`),
    code: ({ text, lang }) => {
      const language = /^[\w+#.-]+/.exec(lang ?? "")?.[0] ?? "";
      return `<pre><code class="language-${language}">${highlighted(text, language.toLowerCase()) ?? escape(text)}</code></pre>`;
    },
  },
});

export function Markdown({ text }: { text: string }) {
  const blocks = useMemo(() => (text.length > MAX_LEN ? null : markdown.lexer(text).filter(({ type }) => type !== "space")), [text]);
  if (blocks === null) return <div class="plain">{text}</div>;
  return (
    <div class="markdown">
      {blocks.map((block, index) => (
        <Block key={index} block={block} />
      ))}
    </div>
  );
}

/** A paragraph, a list, a piece of code; while the text grows, those before the last one stay as they are. */
function Block({ block }: { block: Token }) {
  const element = useRef<HTMLDivElement>(null);
  const html = useMemo(
    () => DOMPurify.sanitize(markdown.parser([block]), { ALLOWED_TAGS, ALLOWED_ATTR: ["href", "start", "align", "class"] }),
    [block.raw, highlighter.value],
  );
  useLayoutEffect(() => {
    if (element.current === null) return;
    element.current.querySelectorAll("pre").forEach(frame);
    void setFormulas(element.current);
  }, [html]);
  return <div class="block" ref={element} dangerouslySetInnerHTML={{ __html: html }} />;
}

/** Code gets a line above it: its language, and a button that copies it. */
function frame(pre: HTMLPreElement): void {
  if (pre.parentElement?.className === "framed") return;
  const language = /language-(\S+)/.exec(pre.firstElementChild?.className ?? "")?.[1] ?? "";
  const box = document.createElement("div");
  const head = document.createElement("div");
  box.className = "framed";
  head.className = "head";
  // What scrolls must be reachable by keyboard.
  pre.tabIndex = 0;
  pre.replaceWith(box);
  box.append(head, pre);
  renderInto(
    <>
      <span>{language}</span>
      <Copy text={() => pre.textContent} label="Copy code" />
    </>,
    head,
  );
}
