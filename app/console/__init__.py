"""What the `omni-app` command is made of. Nothing here imports Litestar, Granian or an engine before it is needed."""
