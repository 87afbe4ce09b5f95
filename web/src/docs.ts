// The page at /docs: Swagger UI over the server's OpenAPI document.
import SwaggerUIBundle from "swagger-ui-dist/swagger-ui-bundle.js";
import "swagger-ui-dist/swagger-ui.css";
import { effect } from "@preact/signals";
import { storedKey } from "./api/key";
import "./docs.css";
import { theme } from "./ui/theme";

interface SwaggerRequest {
  headers: Record<string, string>;
}

// Dark or light as on the page at /, by the class that Swagger UI's own colours follow.
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
function paint(): void {
  const isDark = theme.value === "dark" || (theme.value === "system" && systemIsDark.matches);
  document.documentElement.classList.toggle("dark-mode", isDark);
}
effect(paint);
systemIsDark.addEventListener("change", paint);

SwaggerUIBundle({
  url: new URL("api-doc/openapi.json", document.baseURI).href,
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
  // A path is a link within the button that opens it, which assistive technology cannot tell apart. The button alone will do:
  // what it opens is in the address, too.
  plugins: [() => ({ wrapComponents: { DeepLink: () => (props: { text: unknown }) => props.text } })],
  // Where keys are needed, the one that was given on the page at / is sent here, too.
  requestInterceptor(request: SwaggerRequest): SwaggerRequest {
    const key = storedKey();
    if (key !== null) request.headers.Authorization ??= `Bearer ${key}`;
    return request;
  },
});
