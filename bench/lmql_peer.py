"""LMQL's own server with torch and transformers of Tandem's environment; run by its own Python.

    .venv-conformance/lmql/bin/python bench/lmql_peer.py SITE_PACKAGES MODEL PORT DTYPE

lmql's environment has no torch. In front of its own packages come those of Tandem's, so that the
server has the same torch and the same transformers, which knows the model's architecture.
"""

import sys

site_packages, model, port, dtype = sys.argv[1:]
sys.path.insert(0, site_packages)

from lmql.models.lmtp.lmtp_serve import serve  # noqa: E402

serve(model, host="127.0.0.1", port=int(port), static=True, dtype=dtype)
