"""Quantizer goldens: `python quantize.py` writes quantize.safetensors beside itself.

`input` F32 [n, 32] and, for each encoding that the `gguf` package (0.19) quantizes, U8 [n, block_bytes] blocks. The
rows are finite and their scales are normal numbers: past that the package's integer conversions are undefined.
"""

from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file

rng = np.random.default_rng(11)
rows = [rng.normal(0, 1, (12, 32)), rng.normal(3, 0.5, (4, 32)), rng.uniform(-1e-5, 1e-5, (4, 32))]
rows += [rng.uniform(-5e5, 5e5, (4, 32)), np.zeros((1, 32)), np.full((1, 32), -0.0), np.full((1, 32), 2.5)]
rows += [np.full((1, 32), -2.5), np.arange(32)[None] - 16, np.arange(32)[None] / 2 - 127]
sparse = np.zeros((2, 32))
sparse[0, 31], sparse[1, 7] = 1, -1
ties = (np.arange(64).reshape(2, 32) - 31.5)
ties[:, 0] = 127, -127
rows = np.concatenate([*rows, sparse, ties]).astype(np.float32)
out = {"input": rows}
for name in ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]:
    with np.errstate(over="ignore"):
        out[name.lower()] = gguf.quants.quantize(rows, gguf.GGMLQuantizationType[name])
save_file(out, Path(__file__).with_suffix(".safetensors"), {"source": "gguf.quants.quantize"})
