// An answer as Markdown. It may be hostile: what comes out has no scripts, no styles, no images, and
// links that say where they lead.
import DOMPurify from "dompurify";
import { Marked } from "marked";
import { useMemo } from "preact/hooks";

// Longer texts are shown as they are: parsing them would take longer than a frame.
const MAX_LEN = 60_000;

const ALLOWED_TAGS = [
  ...["p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "strong", "em", "del", "code", "pre", "blockquote"],
  ...["ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td", "a"],
];

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
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

function escape(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
}

// Models write of HTML more often than in it: what they write is shown. Images would be fetched.
const markdown = new Marked({
  renderer: {
    html: ({ text }) => escape(text),
    image: ({ href, text }) => escape(`![${text}](${href})`),
  },
});

export function render(text: string): string {
  const html = markdown.parse(text, { async: false, breaks: true, gfm: true });
  return DOMPurify.sanitize(html, { ALLOWED_TAGS, ALLOWED_ATTR: ["href", "start", "align"] });
}

export function Markdown({ text }: { text: string }) {
  const html = useMemo(() => (text.length > MAX_LEN ? null : render(text)), [text]);
  if (html === null) return <div class="plain">{text}</div>;
  return <div class="markdown" dangerouslySetInnerHTML={{ __html: html }} />;
}
