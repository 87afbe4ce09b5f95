"""HTTP: TGI's routes, OpenAI's routes and the operator's, over one `Infer`."""
