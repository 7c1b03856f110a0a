"""Policy stages: models that move robots behind the engine contract. Pictures and a state in, actions out."""
