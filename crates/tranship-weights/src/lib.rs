//! Memory-mapped GGUF and safetensors checkpoints as named, typed views, with every size checked.
