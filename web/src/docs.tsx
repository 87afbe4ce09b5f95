// The page at /docs: the API, operation by operation.
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { loadDocument, Reference } from "./reference/Reference";
import "./reference/reference.css";
import "./styles.css";
import { KeyDialog } from "./ui/KeyDialog";
import { ThemeButton } from "./ui/ThemeButton";
import { Views } from "./ui/Views";

function Page() {
  useEffect(() => void loadDocument(), []);
  return (
    <>
      <header class="top">
        <span class="brand">Tandem</span>
        <Views current="api" />
        <ThemeButton />
      </header>
      <Reference />
      <KeyDialog onKey={loadDocument} />
    </>
  );
}

render(<Page />, document.getElementById("page") as HTMLElement);
