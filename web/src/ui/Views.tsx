// The views of the page, and the API's page beside them.

export const VIEWS = { chat: "Chat", completion: "Completion", live: "Live" } as const;
export type View = keyof typeof VIEWS;

export function Views({ current }: { current: View | "api" }) {
  return (
    <nav aria-label="Views">
      {Object.entries(VIEWS).map(([name, label]) => (
        <a key={name} href={`./#${name}`} aria-current={current === name ? "page" : undefined}>
          {label}
        </a>
      ))}
      <a class="roomy" href="docs" aria-current={current === "api" ? "page" : undefined}>
        API
      </a>
    </nav>
  );
}
