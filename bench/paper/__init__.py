"""The paper's evaluation again: query programs against chunk-wise generate()."""
