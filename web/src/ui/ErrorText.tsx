// An error as the server says it. Lines behind the first show a place, and keep their columns.
export function ErrorText({ text }: { text: string }) {
  const [said, ...place] = text.split("\n");
  return (
    <div class="error" role="alert">
      {said}
      {place.length > 0 && (
        <pre class="sample" tabIndex={0}>
          {place.join("\n")}
        </pre>
      )}
    </div>
  );
}
