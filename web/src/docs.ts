// The page at /docs: Swagger UI over the server's OpenAPI document.
import SwaggerUIBundle from "swagger-ui-dist/swagger-ui-bundle.js";
import "swagger-ui-dist/swagger-ui.css";
import { storedKey } from "./api/key";

interface SwaggerRequest {
  headers: Record<string, string>;
}

SwaggerUIBundle({
  url: new URL("api-doc/openapi.json", document.baseURI).href,
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
  // Where keys are needed, the one that was given on the page at / is sent here, too.
  requestInterceptor(request: SwaggerRequest): SwaggerRequest {
    const key = storedKey();
    if (key !== null) request.headers.Authorization ??= `Bearer ${key}`;
    return request;
  },
});
