import { defineConfig } from "vite";

// What the router ships: fixed names, so that its list of files is the same for every build.
export default defineConfig({
  base: "./",
  build: {
    outDir: "../router/http/server/bundle",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    // The licences of what is in the bundle, which is shipped.
    license: { fileName: "licenses.md" },
    rollupOptions: {
      input: ["index.html", "docs.html"],
      output: {
        entryFileNames: "assets/[name].js",
        chunkFileNames: "assets/[name].js",
        assetFileNames: "assets/[name][extname]",
      },
    },
  },
  server: {
    // `npx vite` beside a served model.
    proxy: Object.fromEntries(
      ["/v1", "/info", "/metrics", "/health", "/constraints", "/api-doc"].map((path) => [path, "http://127.0.0.1:3000"]),
    ),
  },
});
